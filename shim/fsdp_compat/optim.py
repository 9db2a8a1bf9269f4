"""Optimizer state in FSDP1's shape, keyed by parameter name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from .modules import clean_name, fsdp_modules
from .tensors import full_tensor, shard_like, whole_copy

StateDict: TypeAlias = dict[str, Any]


def optim_state_dict(
    model: nn.Module,
    optim: Optimizer,
    *,
    full: bool = True,
    offload_to_cpu: bool = True,
    rank0_only: bool = False,
) -> StateDict:
    """``optim``'s state as ``FSDP.optim_state_dict`` gives it: ``state`` by parameter name, groups with names.

    ``full`` gathers each tensor (one at a time, onto the CPU if ``offload_to_cpu``), else they stay DTensors. With
    ``rank0_only`` the other ranks get an empty dict; it needs ``full``. The result shares no memory with ``optim``
    if ``full``. Never steps the optimizer: a state that is still empty is returned empty. A collective.

    Raises ValueError for an optimizer that holds parameters of another model.
    """
    if rank0_only and not full:
        raise ValueError("rank0_only=True needs full=True: a shard is of no use on one rank alone")
    names = _names(model, optim)
    keep = not rank0_only or dist.get_rank() == 0
    state = {
        names[param]: {key: _exported(value, full, offload_to_cpu, keep) for key, value in optim.state[param].items()}
        for param in names
        if param in optim.state
    }
    if not keep:
        return {}
    groups = [
        {**{key: value for key, value in group.items() if key != "params"}, "params": _group_names(group, names)}
        for group in optim.param_groups
    ]
    return {"state": state, "param_groups": groups}


def optim_state_dict_to_load(model: nn.Module, optim: Optimizer, optim_state_dict: Mapping[str, Any]) -> StateDict:
    """What ``optim.load_state_dict`` takes, made from a state keyed by parameter name.

    The tensors in ``optim_state_dict`` are whole (on every rank) or DTensors. Values of the groups are matched by
    the names of their parameters. The result shares no memory with ``optim_state_dict``. No collective for whole
    tensors.

    Raises ValueError, naming what does not fit, for state of parameters that ``optim`` does not hold, groups made
    up differently, tensors of another shape, or a state that is empty on this rank; NotImplementedError for
    ShardedTensor and for states keyed by number.
    """
    if "state" not in optim_state_dict or "param_groups" not in optim_state_dict:
        raise ValueError(
            "optim_state_dict holds no 'state' and 'param_groups' on this rank. Load it on every rank: rank 0 does "
            "not send it to the others."
        )
    names = _names(model, optim)
    saved = {clean_name(name): value for name, value in optim_state_dict["state"].items()}
    strangers = sorted(saved.keys() - set(names.values()))
    if strangers:
        raise ValueError(f"optim_state_dict has state for {_shortened(strangers)}, which the optimizer does not hold")
    order = {param: index for index, param in enumerate(names)}
    state = {
        order[param]: {key: _imported(value, param, f"{key} of {name}") for key, value in saved[name].items()}
        for param, name in names.items()
        if name in saved
    }
    groups = []
    for group, saved_group in zip(optim.param_groups, _matching_groups(optim, names, optim_state_dict), strict=True):
        values = {key: value for key, value in saved_group.items() if key != "params"}
        groups.append({**values, "params": [order[param] for param in group["params"]]})
    return {"state": state, "param_groups": groups}


def _names(model: nn.Module, optim: Optimizer) -> dict[torch.Tensor, str]:
    """Name of each parameter that ``optim`` holds, in its order."""
    for unit in fsdp_modules(model):
        assert isinstance(unit, FSDPModule)
        unit.reshard()
    known = {param: clean_name(name) for name, param in model.named_parameters()}
    names: dict[torch.Tensor, str] = {}
    for index, group in enumerate(optim.param_groups):
        for position, param in enumerate(group["params"]):
            if param not in known:
                raise ValueError(
                    f"parameter {position} of the optimizer's group {index} (shape {tuple(param.shape)}) is not in "
                    f"this {type(model).__name__}. If the optimizer was built before the model was sharded, call "
                    "fsdp_compat.relink_optimizer(optimizer, model) first."
                )
            names[param] = known[param]
    return names


def parameter_names(model: nn.Module, optim: Optimizer) -> list[str]:
    """The names of the parameters that ``optim`` holds, in its order: the i-th is number i of its state dict."""
    return list(_names(model, optim).values())


def _group_names(group: Mapping[str, Any], names: Mapping[torch.Tensor, str]) -> list[str]:
    return [names[param] for param in group["params"]]


def _exported(value: Any, full: bool, offload_to_cpu: bool, keep: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if not full:
        return value.cpu() if offload_to_cpu else value
    whole = whole_copy(value) if isinstance(value, DTensor) else value.detach().clone()
    if not keep:
        return None
    return whole.cpu() if offload_to_cpu else whole


def _imported(value: Any, param: torch.Tensor, what: str) -> Any:
    if not isinstance(value, torch.Tensor):
        if hasattr(value, "local_shards"):
            raise NotImplementedError(
                f"{what} is a ShardedTensor, which FSDP2 does not read. Load the checkpoint with "
                "torch.distributed.checkpoint into get_optimizer_state_dict(model, optim), or save it full."
            )
        return value
    if value.dim() == 0 or value.shape != param.shape:
        if value.dim() > 0 and value.numel() > 1 and value.numel() == param.numel():
            raise ValueError(f"{what} has shape {tuple(value.shape)}, the parameter {tuple(param.shape)}")
        return value.clone()
    if not isinstance(param, DTensor):
        return full_tensor(value) if isinstance(value, DTensor) else value.clone()
    if isinstance(value, DTensor):
        if value.device_mesh == param.device_mesh and value.placements == param.placements:
            return value.clone()
        value = full_tensor(value)
    return shard_like(value, param)


def _matching_groups(
    optim: Optimizer, names: Mapping[torch.Tensor, str], saved: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    by_names: dict[frozenset[str], Mapping[str, Any]] = {}
    for group in saved["param_groups"]:
        if any(not isinstance(name, str) for name in group["params"]):
            raise NotImplementedError(
                "optim_state_dict is keyed by number; key it by parameter name, as FSDP.optim_state_dict does"
            )
        by_names[frozenset(map(clean_name, group["params"]))] = group
    matching = []
    for index, group in enumerate(optim.param_groups):
        wanted = frozenset(_group_names(group, names))
        if wanted not in by_names:
            raise ValueError(
                f"no group in optim_state_dict has the parameters of the optimizer's group {index} "
                f"({_shortened(sorted(wanted))}); build the same groups as when it was saved"
            )
        matching.append(by_names[wanted])
    return matching


def _shortened(names: list[str], limit: int = 5) -> str:
    return ", ".join(names[:limit]) + (f" and {len(names) - limit} more" if len(names) > limit else "")
