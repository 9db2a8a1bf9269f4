"""Optimizer state in FSDP1's shape, keyed by parameter name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fsdp_compat.messages import logger, shortened
from fsdp_compat.optimizers.groups import KEYED_BY_NUMBER, exported_groups, loadable_groups
from fsdp_compat.optimizers.held import Held, OptimInput, held_parameters
from fsdp_compat.planning.records import record_of
from fsdp_compat.states.agreement import check_agreement
from fsdp_compat.states.rank0 import FromFirstRank, is_first_rank, map_tensors, meshes_of
from fsdp_compat.states.sharded_tensors import is_sharded_tensor, whole_of
from fsdp_compat.states.sharing import Sharing
from fsdp_compat.torch_.param_groups import managed_parameters
from fsdp_compat.torch_.tensors import full_tensor, shard_like, whole_copy
from fsdp_compat.units import clean_name, fsdp_modules

StateDict: TypeAlias = dict[str, Any]
_Fetch: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def optim_state_dict(
    model: nn.Module,
    optim: Optimizer,
    *,
    full: bool = True,
    offload_to_cpu: bool = True,
    rank0_only: bool = False,
    optim_state_dict: Mapping[str, Any] | None = None,
    optim_input: OptimInput | None = None,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """``optim``'s state as ``FSDP.optim_state_dict`` gives it: ``state`` by parameter name, groups with names.

    ``full`` gathers each tensor (one at a time, onto the CPU if ``offload_to_cpu``), else they stay DTensors. With
    ``rank0_only`` the other ranks get an empty dict; it needs ``full``. The result shares no memory with ``optim`` but
    for tensors of parameters that are not sharded, which FSDP1 saves as they are. Never steps the optimizer: a state
    that is still empty is returned empty. A collective; optimizers may hold their parameters in another order on each
    rank, and the entries come in that of the first rank on all.

    ``optim_state_dict`` stands for ``optim.state_dict()``: numbered as that is, or by name; without groups there are
    none in the result. What is not a parameter's state in it is kept as it is. ``optim_input`` is what an optimizer
    of that numbering was built from. ``group`` says which rank is the first.

    Raises ValueError for an optimizer that holds parameters of another model, RuntimeError if the ranks do not hold
    the same state.
    """
    if rank0_only and not full:
        raise ValueError("rank0_only=True needs full=True: a single shard on one rank is of no use")
    held = held_parameters(model, optim, optim_input)
    given = optim.state_dict() if optim_state_dict is None else optim_state_dict
    states, others = _by_name(given["state"], held)
    sharded = {held.names[param] for param in held.order if isinstance(param, DTensor)}
    if full:
        check_agreement({name: states[name] for name in sharded & states.keys()}, meshes_of(model))
    order = _order_of_first_rank(states, model, group)
    keep = not rank0_only or is_first_rank(model, group)
    exported: dict[Any, Any] = {}
    sharing = Sharing(model)
    for param in held.order:
        name = held.names[param]
        if name in states:

            def own(value: torch.Tensor, param: torch.Tensor = param) -> torch.Tensor | None:
                return sharing.saved(value, param, full=full, offload_to_cpu=offload_to_cpu)

            # Sorted, since the ranks gather together and a dict may have another order on each of them.
            exported[name] = {
                key: _exported(states[name][key], full, offload_to_cpu, keep, own) for key in sorted(states[name])
            }
    if not keep:
        return {}
    saved = held.saved_names
    ordered = {saved[name]: {key: exported[name][key] for key in order[name]} for name in order}
    if others:
        logger.info(
            "optimizer state without a parameter is kept unchanged: %s", shortened([str(key) for key in others])
        )
    result: StateDict = {"state": {**ordered, **others}}
    if "param_groups" in given:
        result["param_groups"] = exported_groups(given["param_groups"], held)
    return result


def optim_state_dict_to_load(
    model: nn.Module,
    optim: Optimizer | None,
    optim_state_dict: Mapping[str, Any],
    *,
    optim_input: OptimInput | None = None,
    rank0_only: bool = False,
    is_named_optimizer: bool = False,
    group: dist.ProcessGroup | None = None,
) -> StateDict:
    """What ``optim.load_state_dict`` takes, made from a state keyed by parameter name.

    The tensors in ``optim_state_dict`` are whole (on every rank), DTensors, or ShardedTensors as FSDP1's are. Values
    of the groups are matched by the names of their parameters; parameters that FSDP does not manage may be missing in
    them, and then are so in the result. The result shares no memory with ``optim_state_dict`` but for counters of
    steps, and for tensors of parameters that are not sharded, where FSDP1 goes on in what it was given. It has no
    groups if ``optim_state_dict`` has none, and is keyed by number, or with ``is_named_optimizer`` by name. No
    collective for whole tensors, unless ``rank0_only``: then the first rank of ``group`` sends what it has to the
    others, a tensor at a time.

    Raises ValueError, naming what does not fit, for state of parameters that ``optim`` does not hold, groups made
    up differently, tensors of another shape, a state that lacks a part of a unit, or one that is empty on this rank;
    NotImplementedError for states keyed by number.
    """
    held = held_parameters(model, optim, optim_input)
    fetch: _Fetch = torch.Tensor.detach
    if rank0_only:
        sent = FromFirstRank(optim_state_dict, model, group)
        optim_state_dict, fetch = sent.skeleton, sent.tensor
    if "state" not in optim_state_dict:
        raise ValueError(
            "optim_state_dict has no 'state' on this rank. Load it on every rank, or set "
            "FullOptimStateDictConfig(rank0_only=True), which makes rank 0 send it to the others."
        )
    params = {name: param for param, name in held.names.items()}
    saved = {
        clean_name(key) if isinstance(key, str) else key: value for key, value in optim_state_dict["state"].items()
    }
    strangers = sorted(str(key) for key, value in saved.items() if key not in params and isinstance(value, Mapping))
    if strangers and any(isinstance(key, int) for key in saved):
        raise NotImplementedError(KEYED_BY_NUMBER)
    if strangers:
        raise ValueError(f"optim_state_dict has state for {shortened(strangers)}, which the optimizer does not have")
    _check_units_whole(model, held, saved)
    keys: Mapping[str, Any] = held.raw_names if is_named_optimizer else held.numbers()
    sharing = Sharing(model, is_sent=rank0_only)
    # In the order of what was saved, which is the same on all ranks where one of them sends it.
    state: dict[Any, Any] = {}
    for name, values in saved.items():
        if name in params:
            state[keys[name]] = {
                key: _imported(values[key], params[name], fetch, f"{key} of {name}", sharing) for key in values
            }
        else:
            state[name] = map_tensors(values, fetch)
    # In that of the model on all ranks, as in FSDP1, for those who gather what is loaded entry by entry.
    ordered = [keys[held.names[param]] for param in held.order]
    in_order = {key: state[key] for key in ordered if key in state}
    loadable: StateDict = {"state": {**in_order, **state}}
    if "param_groups" in optim_state_dict:
        groups = map_tensors(optim_state_dict["param_groups"], fetch)
        loadable["param_groups"] = loadable_groups(groups, held, keys)
    return loadable


def _check_units_whole(model: nn.Module, held: Held, saved: Mapping[Any, Any]) -> None:
    """Raise ValueError where FSDP1 cannot make one state of those of a flat parameter, which it then counts in."""
    for unit in fsdp_modules(model):
        record = record_of(unit)
        if record is None or record.options.use_orig_params:
            continue
        trained = [managed.sharded for managed in managed_parameters(unit) if managed.sharded.requires_grad]
        names = [held.names[param] for param in trained if param in held.names]
        lacking = [name for name in names if name not in saved]
        values = [value for name in names for value in saved.get(name, {}).values()]
        if lacking and any(isinstance(value, torch.Tensor) and not value.dim() for value in values):
            raise ValueError(
                "All unflattened parameters comprising a single flat parameter must have scalar state with the same "
                f"value and dtype: optim_state_dict has no state for {shortened(lacking)}, but has state for other "
                f"parameters of the same {type(unit).__name__}. Load it into the model that it was saved from, or use "
                "use_orig_params=True."
            )


def _order_of_first_rank(
    states: Mapping[str, Mapping[str, Any]], model: nn.Module, group: dist.ProcessGroup | None
) -> dict[str, list[str]]:
    """The names in ``states`` and the keys of each, in the order of the first rank; what it lacks follows.

    So code that communicates entry by entry meets on all ranks.
    """
    own = {name: list(state) for name, state in states.items()}
    first: dict[str, list[str]] = FromFirstRank(own, model, group).skeleton
    names = [*(name for name in first if name in own), *(name for name in own if name not in first)]
    return {name: sorted(own[name], key=[*first.get(name, ()), *own[name]].index) for name in names}


def _by_name(states: Mapping[Any, Any], held: Held) -> tuple[dict[str, Any], dict[Any, Any]]:
    """The states of parameters, by name, in the order of the optimizer, and all the others as they are."""
    by_number = dict(enumerate(held.names.values()))
    known = set(held.names.values())
    found: dict[str, Any] = {}
    others: dict[Any, Any] = {}
    for key, value in states.items():
        name = by_number.get(key) if isinstance(key, int) else clean_name(key) if isinstance(key, str) else None
        if name in known and isinstance(value, Mapping):
            found[name] = value
        else:
            others[key] = value
    return {name: found[name] for name in held.names.values() if name in found}, others


def _exported(
    value: Any, full: bool, offload_to_cpu: bool, keep: bool, own: Callable[[torch.Tensor], torch.Tensor | None]
) -> Any:
    if not isinstance(value, torch.Tensor):
        return map_tensors(value, lambda tensor: _exported(tensor, full, offload_to_cpu, keep, own))
    if (shared := own(value)) is not None:
        return shared if keep else None
    if not full:
        copied = value.detach().clone()
        return copied.cpu() if offload_to_cpu else copied
    whole = whole_copy(value) if isinstance(value, DTensor) else value.detach().clone()
    if not keep:
        return None
    return whole.cpu() if offload_to_cpu else whole


def _imported(value: Any, param: torch.Tensor, fetch: _Fetch, what: str, sharing: Sharing) -> Any:
    if is_sharded_tensor(value):
        value = whole_of(value)
    elif not isinstance(value, torch.Tensor):
        return map_tensors(value, lambda tensor: fetch(tensor).clone())
    elif value.dim() == 0:
        return sharing.counter(value, fetch(value), param)
    else:
        value = fetch(value)
    if value.shape != param.shape:
        if value.dim() > 0 and value.numel() > 1 and value.numel() == param.numel():
            raise ValueError(f"{what} has shape {tuple(value.shape)}, the parameter {tuple(param.shape)}")
        return value.clone()
    if not isinstance(param, DTensor):
        return full_tensor(value) if isinstance(value, DTensor) else value.clone()
    if isinstance(value, DTensor):
        if value.device_mesh == param.device_mesh and value.placements == param.placements:
            return value if sharing.loads(param) else value.clone()
        value = full_tensor(value)
    return shard_like(value, param, copy=not sharing.loads(param))
