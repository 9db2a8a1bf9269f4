"""Gathering of a unit's parameters: left out for a while, prepared, asked about, and in which precision.

Reaches into FSDP2's private state, see :mod:`.param_groups`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from fsdp_compat.torch_.param_groups import fsdp_state, param_groups, set_input_cast

_ABSENT = object()


def is_left_alone(module: nn.Module) -> bool:
    """Whether one unit is inside :func:`left_alone`."""
    return any(is_group_left_alone(group) for group in param_groups(module))


def is_group_left_alone(group: Any) -> bool:
    return vars(group).get("_to_sharded") is _do_nothing


Kept: TypeAlias = dict[tuple[int, str], Any]


def exchange_precision(module: nn.Module, kept: Kept) -> None:
    """Put one unit into full precision and its precision, with what was gathered in it, into ``kept``; or back again.

    ``kept`` is empty at first and belongs to this unit. Ends with the unit sharded.
    """
    groups = param_groups(module)
    for group in groups:
        if group._all_gather_result is not None:
            group.wait_for_unshard()
        group._to_sharded()
    full = MixedPrecisionPolicy(cast_forward_inputs=False)
    exchanged: list[tuple[Any, str, Any]] = [(fsdp_state(module), "_mp_policy", full)]
    exchanged += [(group, "mp_policy", full) for group in groups]
    for param in (param for group in groups for param in group.fsdp_params):
        if hasattr(param, "mp_policy"):
            exchanged.append((param, "mp_policy", full))
        exchanged += [(param, "all_gather_outputs", []), (param, "_unsharded_param", _ABSENT)]
    for owner, name, default in exchanged:
        key = (id(owner), name)
        value = kept.get(key, default)
        kept[key] = getattr(owner, name, _ABSENT)
        if value is not _ABSENT:
            setattr(owner, name, value)
        elif hasattr(owner, name):
            delattr(owner, name)
    for group in groups:
        group._init_mp_dtypes()


@contextlib.contextmanager
def left_alone(module: nn.Module) -> Iterator[None]:
    """Inside, FSDP2 leaves what ``module``'s unit registers as parameters as it is.

    The unit's forward neither gathers nor frees nor casts its inputs; ``state_dict``, ``load_state_dict`` and ``to``
    work on what is registered. The unit must be sharded (:meth:`FSDPModule.reshard`) at entry and counts as sharded
    again at exit; whoever exchanges the registered parameters puts the sharded ones back.
    """
    groups = param_groups(module)
    states = [group._sharded_state for group in groups]
    cast = set_input_cast(module, False)
    # Attributes of the instances, which hide the methods of the same name, or other attributes, until they go again.
    params = [param for group in groups for param in group.fsdp_params]
    hidden = [(group, name, _do_nothing) for group in groups for name in ("_to_sharded", "_to_sharded_post_forward")]
    hidden += [(param, "reset_sharded_param", _do_nothing) for param in params]
    # From 2.15 on a forward looks at what was gathered, even if there is nothing to do with it.
    hidden += [
        (param, "_unsharded_param", param.sharded_param) for param in params if not hasattr(param, "_unsharded_param")
    ]
    before = [(owner, name, vars(owner)[name]) for owner, name, _ in hidden if name in vars(owner)]
    try:
        for group in groups:
            group._sharded_state = type(group._sharded_state).UNSHARDED
        for owner, name, value in hidden:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, _ in hidden:
            delattr(owner, name)
        for owner, name, value in before:
            setattr(owner, name, value)
        for group, state in zip(groups, states, strict=True):
            group._sharded_state = state
        set_input_cast(module, cast)


def _do_nothing() -> None:
    return None


def prepare(module: nn.Module) -> None:
    """Settle one unit's shards and dtypes as its first gather would, without deciding which unit is the root."""
    for group in param_groups(module):
        group.lazy_init()


def gathered_copies(units: Iterable[nn.Module]) -> dict[int, str]:
    """The temporary full parameters that stand in the modules between a gather and the next free: identity to name."""
    return {
        id(copy): param._param_fqn or param._module_info.param_name
        for unit in units
        for group in param_groups(unit)
        for param in group.fsdp_params
        if isinstance(copy := getattr(param, "_unsharded_param", None), torch.Tensor)
    }


def is_being_gathered(module: nn.Module) -> bool:
    """Whether this unit's parameters have been asked for, and nobody has waited for them yet."""
    return any(group._all_gather_result is not None for group in param_groups(module))
