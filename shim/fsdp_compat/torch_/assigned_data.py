"""Sharded parameters whose ``.data`` was assigned: a DTensor takes it without an error, and keeps its values.

Reaches into FSDP2's private state, see :mod:`.param_groups`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_compat.torch_.param_groups import param_groups

#: Of a parameter of FSDP2: the storage of the DTensor and the tensor inside it. An assignment changes the first alone.
_SEEN = "_fsdp_compat_seen"


def note_data(module: nn.Module) -> None:
    """Note what one unit's parameters hold, now and whenever FSDP2 takes over what a move or a load has put there."""
    for group in param_groups(module):
        for param in group.fsdp_params:
            param.reset_sharded_param = functools.partial(_reset_and_note, param, param.reset_sharded_param)
            _note(param)


def refuse_assigned_data(module: nn.Module, among: Container[int] | None = None) -> None:
    """Raise RuntimeError if ``.data`` of one of the unit's parameters was assigned since they were noted.

    Only of those whose identities are ``among`` them, if given.
    """
    for group in param_groups(module):
        for param in group.fsdp_params:
            if among is None or id(param.sharded_param) in among:
                _refuse_assigned(param)


def _reset_and_note(param: Any, reset: Callable[[], None]) -> None:
    _refuse_assigned(param)
    reset()
    _note(param)


def _note(param: Any) -> None:
    setattr(param, _SEEN, _state(param.sharded_param))


def _refuse_assigned(param: Any) -> None:
    seen = getattr(param, _SEEN, None)
    if seen is None:
        return  # fully_shard was called without fsdp_compat
    storage, local = _state(param.sharded_param)
    if storage._cdata != seen[0]._cdata and local is seen[1]:
        place = f"{type(param._module_info.module).__name__}.{param._module_info.param_name}"
        raise RuntimeError(
            f".data of {place} was assigned after sharding, which does not change a DTensor's values. Write values "
            "with param.copy_(...) under torch.no_grad(), and change dtypes before FSDP."
        )


def _state(sharded: DTensor) -> tuple[torch.UntypedStorage, torch.Tensor]:
    return sharded.untyped_storage(), sharded._local_tensor
