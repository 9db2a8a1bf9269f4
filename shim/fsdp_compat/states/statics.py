"""FSDP1's static methods for optimizer state, each in terms of :mod:`fsdp_compat.states.optim`.

All take their arguments in any order that torch has had: a model, an optimizer and a state cannot be mistaken for one
another. Differs from FSDP1 in that none warns of being deprecated, except for the argument ``optim_input``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from fsdp_compat.messages import log_once
from fsdp_compat.optimizers.groups import exported_groups
from fsdp_compat.optimizers.held import OptimInput, held_parameters
from fsdp_compat.states import optim as _optim
from fsdp_compat.states.optim import StateDict
from fsdp_compat.states.state_dict_type import optim_options
from fsdp_compat.units import clean_name
from fsdp_compat.vocabulary import OptimStateKeyType


def optim_state_dict(
    model: nn.Module,
    optim: Optimizer,
    optim_state_dict: StateDict | None = None,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """``FSDP.optim_state_dict``: full or sharded as :func:`fsdp_compat.set_state_dict_type` says.

    ``optim_state_dict`` stands for ``optim.state_dict()``, with or without groups.
    """
    options = optim_options(model)
    return _optim.optim_state_dict(
        model,
        optim,
        optim_state_dict=optim_state_dict,
        group=group,
        full=options.full,
        offload_to_cpu=options.offload_to_cpu,
        rank0_only=options.rank0_only,
    )


def optim_state_dict_to_load(
    model: nn.Module,
    optim: Optimizer,
    optim_state_dict: StateDict | None,
    is_named_optimizer: bool = False,
    load_directly: bool = False,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """``FSDP.optim_state_dict_to_load``; with ``rank0_only`` set, rank 0 sends its state to the others.

    What the others pass is not read then, and may be None, as under FSDP1. Also takes torch 2.0's order
    ``(optim_state_dict, model, optim)``. Raises TypeError for any other.
    """
    model, optim, optim_state_dict = _sorted_out(model, optim, optim_state_dict)
    loadable = _optim.optim_state_dict_to_load(
        model,
        optim,
        optim_state_dict,
        rank0_only=optim_options(model).rank0_only,
        is_named_optimizer=is_named_optimizer,
        group=group,
    )
    if load_directly:
        optim.load_state_dict(loadable)
    return loadable


def full_optim_state_dict(
    model: nn.Module,
    optim: Optimizer,
    optim_input: OptimInput | None = None,
    rank0_only: bool = True,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """The whole state on the CPU, on rank 0 alone by default."""
    return _optim.optim_state_dict(model, optim, rank0_only=rank0_only, optim_input=optim_input, group=group)


def sharded_optim_state_dict(model: nn.Module, optim: Optimizer, group: dist.ProcessGroup | None = None) -> StateDict:
    """The state with DTensors; FSDP1 gives ShardedTensors here."""
    return _optim.optim_state_dict(model, optim, full=False, offload_to_cpu=False, group=group)


def shard_full_optim_state_dict(
    full_optim_state_dict: StateDict,
    model: nn.Module,
    optim_input: OptimInput | None = None,
    optim: Optimizer | None = None,
) -> StateDict:
    """What ``optim.load_state_dict`` takes, from a whole state that every rank has."""
    optim_input, optim = _third(optim_input, optim)
    return _optim.optim_state_dict_to_load(model, optim, full_optim_state_dict, optim_input=optim_input)


def flatten_sharded_optim_state_dict(
    sharded_optim_state_dict: StateDict, model: nn.Module, optim: Optimizer
) -> StateDict:
    """What ``optim.load_state_dict`` takes, from a state with DTensors."""
    return _optim.optim_state_dict_to_load(model, optim, sharded_optim_state_dict)


def scatter_full_optim_state_dict(
    full_optim_state_dict: StateDict | None,
    model: nn.Module,
    optim_input: OptimInput | None = None,
    optim: Optimizer | None = None,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """What ``optim.load_state_dict`` takes, from a whole state that rank 0 has and sends tensor by tensor."""
    optim_input, optim = _third(optim_input, optim)
    return _optim.optim_state_dict_to_load(
        model, optim, full_optim_state_dict or {}, optim_input=optim_input, rank0_only=True, group=group
    )


def rekey_optim_state_dict(
    optim_state_dict: StateDict,
    optim_state_key_type: OptimStateKeyType,
    model: nn.Module,
    optim_input: OptimInput | None = None,
    optim: Optimizer | None = None,
) -> StateDict:
    """The same state keyed by the parameters' names or by their numbers in ``optim``; as it is if it is so already.

    Raises ValueError for keys of both kinds, and for a key that ``optim`` does not know.
    """
    optim_input, optim = _third(optim_input, optim)
    held = held_parameters(model, optim, optim_input)
    states = optim_state_dict["state"]
    wanted = str if optim_state_key_type is OptimStateKeyType.PARAM_NAME else int
    if len({type(key) for key in states}) > 1:
        raise ValueError(f"Invalid parameter keys: {states.keys()}: both names and numbers in one state")
    if all(type(key) is wanted for key in states):
        return optim_state_dict
    numbers = held.numbers()
    keys: dict[Any, Any] = dict(enumerate(held.saved_names[name] for name in numbers)) if wanted is str else numbers
    cleaned = {clean_name(key) if isinstance(key, str) else key: state for key, state in states.items()}
    unknown = [key for key in cleaned if key not in keys]
    if unknown:
        raise ValueError(f"the optimizer has no parameter {unknown[0]!r}")
    groups = exported_groups(optim_state_dict["param_groups"], held)
    if wanted is int:
        groups = [{**group, "params": [numbers[clean_name(name)] for name in group["params"]]} for group in groups]
    return {
        "state": {keys[key]: state for key, state in cleaned.items()},
        "param_groups": [{**group, "params": sorted(group["params"])} for group in groups],
    }


def _sorted_out(*given: Any) -> tuple[nn.Module, Optimizer, StateDict]:
    models = [one for one in given if isinstance(one, nn.Module)]
    # Wrapped optimizers need not be torch's, and a wrapper that is a model has no groups.
    optimizers = [one for one in given if hasattr(one, "param_groups")]
    others = [one for one in given if not isinstance(one, nn.Module)]
    states = [one or {} for one in others if one is None or isinstance(one, Mapping)]
    if [len(models), len(optimizers), len(states)] != [1, 1, 1]:
        raise TypeError(
            "optim_state_dict_to_load takes a model, an optimizer and an optimizer state, not "
            f"{', '.join(type(one).__name__ for one in given)}"
        )
    if given[0] is not models[0]:
        log_once(
            "optim_state_dict_to_load was called in torch 2.0's order (optim_state_dict, model, optim), and "
            "the arguments were reordered"
        )
    return models[0], optimizers[0], dict(states[0])


def _third(
    optim_input: OptimInput | Optimizer | None, optim: Optimizer | None
) -> tuple[OptimInput | None, Optimizer | None]:
    if isinstance(optim_input, Optimizer):
        log_once("an optimizer was passed as optim_input and is used as optim")
        return None, optim_input
    return optim_input, optim
