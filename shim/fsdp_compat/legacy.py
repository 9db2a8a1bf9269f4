"""FSDP1's older static methods for optimizer state, each in terms of :mod:`fsdp_compat.optim`."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import OptimStateKeyType
from torch.optim import Optimizer

from . import optim as _optim
from .optim import StateDict
from .rank0 import from_first_rank
from .state import optim_options


def optim_state_dict(
    model: nn.Module,
    optim: Optimizer,
    optim_state_dict: StateDict | None = None,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """``FSDP.optim_state_dict``: full or sharded as :func:`fsdp_compat.set_state_dict_type` says."""
    if optim_state_dict is not None:
        raise NotImplementedError(
            "optim_state_dict(model, optim, state) is not supported: give the optimizer the state "
            "(optim.load_state_dict), then call optim_state_dict(model, optim)"
        )
    return _optim.optim_state_dict(model, optim, **optim_options(model))


def optim_state_dict_to_load(
    model: nn.Module,
    optim: Optimizer,
    optim_state_dict: StateDict,
    is_named_optimizer: bool = False,
    load_directly: bool = False,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """``FSDP.optim_state_dict_to_load``; with ``rank0_only`` set, rank 0 sends its state to the others."""
    if is_named_optimizer:
        raise NotImplementedError("named optimizers are not supported: use the optimizer that they wrap")
    if optim_options(model)["rank0_only"]:
        optim_state_dict = from_first_rank(optim_state_dict, group)
    loadable = _optim.optim_state_dict_to_load(model, optim, optim_state_dict)
    if load_directly:
        optim.load_state_dict(loadable)
    return loadable


def full_optim_state_dict(
    model: nn.Module,
    optim: Optimizer,
    optim_input: Any = None,
    rank0_only: bool = True,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """The whole state on the CPU, on rank 0 alone by default."""
    _refuse(optim_input)
    return _optim.optim_state_dict(model, optim, full=True, offload_to_cpu=True, rank0_only=rank0_only)


def sharded_optim_state_dict(model: nn.Module, optim: Optimizer, group: dist.ProcessGroup | None = None) -> StateDict:
    """The state with DTensors; FSDP1 gives ShardedTensors here."""
    return _optim.optim_state_dict(model, optim, full=False, offload_to_cpu=False)


def shard_full_optim_state_dict(
    full_optim_state_dict: StateDict, model: nn.Module, optim_input: Any = None, optim: Optimizer | None = None
) -> StateDict:
    """What ``optim.load_state_dict`` takes, from a whole state that every rank has."""
    return _optim.optim_state_dict_to_load(model, _given(optim, optim_input), full_optim_state_dict)


def flatten_sharded_optim_state_dict(
    sharded_optim_state_dict: StateDict, model: nn.Module, optim: Optimizer
) -> StateDict:
    """What ``optim.load_state_dict`` takes, from a state with DTensors."""
    return _optim.optim_state_dict_to_load(model, optim, sharded_optim_state_dict)


def scatter_full_optim_state_dict(
    full_optim_state_dict: StateDict | None,
    model: nn.Module,
    optim_input: Any = None,
    optim: Optimizer | None = None,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """What ``optim.load_state_dict`` takes, from a whole state that rank 0 has."""
    return _optim.optim_state_dict_to_load(
        model, _given(optim, optim_input), from_first_rank(full_optim_state_dict, group)
    )


def rekey_optim_state_dict(
    optim_state_dict: StateDict,
    optim_state_key_type: OptimStateKeyType,
    model: nn.Module,
    optim_input: Any = None,
    optim: Optimizer | None = None,
) -> StateDict:
    """The same state keyed by the parameters' names or by their numbers in ``optim``.

    Raises ValueError for a key that ``optim`` does not know.
    """
    names = _optim.parameter_names(model, _given(optim, optim_input))
    if optim_state_key_type is OptimStateKeyType.PARAM_NAME:
        keys: dict[Any, Any] = dict(enumerate(names))
    else:
        keys = {name: number for number, name in enumerate(names)}
    unknown = [key for key in optim_state_dict["state"] if key not in keys and key not in keys.values()]
    if unknown:
        raise ValueError(f"the optimizer holds no parameter {unknown[0]!r}")
    return {
        "state": {keys.get(key, key): value for key, value in optim_state_dict["state"].items()},
        "param_groups": [
            {**group, "params": sorted(keys.get(key, key) for key in group["params"])}
            for group in optim_state_dict["param_groups"]
        ],
    }


def _given(optim: Optimizer | None, optim_input: Any) -> Optimizer:
    _refuse(optim_input)
    if optim is None:
        raise ValueError("pass optim=, the optimizer whose state this is")
    return optim


def _refuse(optim_input: Any) -> None:
    if optim_input is not None:
        raise NotImplementedError("optim_input is gone since torch 1.13: pass the optimizer as optim=")
