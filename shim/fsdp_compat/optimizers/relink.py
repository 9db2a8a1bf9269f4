"""Optimizers that were built before the model was sharded."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fsdp_compat.optimizers.replaced import replacement_of, survivors
from fsdp_compat.torch_.param_groups import managed_parameters
from fsdp_compat.torch_.tensors import shard_like
from fsdp_compat.units import fsdp_modules

#: How deep lists in dicts in lists of an optimizer are looked into.
_DEEP = 4


def relink_optimizer(optimizer: Optimizer, module: nn.Module) -> None:
    """Make an optimizer built before ``module`` was sharded hold its parameters, in place.

    Groups keep their order and values, state tensors of a parameter's shape are cut like the parameter, other state
    is kept as it is. Parameters that are up to date stay. No collective; every rank calls it.

    Raises TypeError if ``optimizer`` has no groups of parameters, ValueError if it holds parameters that ``module``
    neither has nor had.
    """
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"relink_optimizer takes an optimizer and got {type(optimizer).__name__}. Call it after the line that "
            f"builds the optimizer, and only if there is one."
        )
    successors = _successors(optimizer, module)
    current = set(module.parameters())
    for index, group in enumerate(optimizer.param_groups):
        for position, param in enumerate(group["params"]):
            if param not in current and param not in successors:
                raise ValueError(
                    f"parameter {position} of the optimizer's group {index} (shape {tuple(param.shape)}) never "
                    f"belonged to this {type(module).__name__}"
                )
    _exchange(optimizer, successors)


def relink_live_optimizers(module: nn.Module) -> None:
    """Relink every optimizer of this process that holds parameters which live on after sharding ``module``.

    FSDP1 with ``use_orig_params=True`` keeps such optimizers valid. Parameters of other models stay in them, and so do
    those that FSDP1 replaces too.
    """
    # Looking through all objects takes long; nobody can hold what is gone.
    if any(found.lives_on for found in map(replacement_of, survivors(module)) if found is not None):
        for candidate in gc.get_objects():
            # Not isinstance: that would ask proxies for their __class__, which may run code.
            if issubclass(type(candidate), Optimizer):
                successors = _successors(candidate, module)
                _exchange(candidate, {old: new for old, new in successors.items() if _lives_on(old)})


def _lives_on(param: torch.Tensor) -> bool:
    found = replacement_of(param)
    return found is not None and found.lives_on


def _successors(optimizer: Optimizer, module: nn.Module) -> dict[torch.Tensor, Any]:
    """What each parameter of ``optimizer`` that is no longer in ``module`` has become there."""
    for unit in fsdp_modules(module):
        assert isinstance(unit, FSDPModule)
        unit.reshard()
    current = set(module.parameters())
    gathered = {
        param.unsharded: param.sharded
        for unit in fsdp_modules(module)
        for param in managed_parameters(unit)
        if param.unsharded is not None
    }
    successors: dict[torch.Tensor, Any] = {}
    for param in (param for group in optimizer.param_groups for param in group["params"] if param not in current):
        replacement = replacement_of(param)
        successor = replacement.current() if replacement is not None else gathered.get(param)
        if successor is not None and successor in current:
            successors[param] = successor
    return successors


def _exchange(optimizer: Optimizer, successors: dict[torch.Tensor, Any]) -> None:
    if not successors:
        return
    for group in optimizer.param_groups:
        # In place: LBFGS and others hold the list itself, too.
        group["params"][:] = [successors.get(param, param) for param in group["params"]]
    for name in vars(optimizer).keys() - {"param_groups", "state"}:
        vars(optimizer)[name] = _followed(vars(optimizer)[name], successors, _DEEP)
    for old, new in successors.items():
        if old in optimizer.state:
            state = optimizer.state.pop(old)
            optimizer.state[new] = {key: _resharded(value, old, new) for key, value in state.items()}


def _followed(value: Any, successors: dict[torch.Tensor, Any], depth: int) -> Any:
    """``value`` with successors in the place of what they replace; lists and dicts stay the same objects."""
    if isinstance(value, torch.Tensor):
        return successors.get(value, value)
    if isinstance(value, list) and depth:
        value[:] = [_followed(part, successors, depth - 1) for part in value]
    elif isinstance(value, dict) and depth:
        items = [(_followed(key, successors, 0), _followed(part, successors, depth - 1)) for key, part in value.items()]
        value.clear()
        value.update(items)
    elif type(value) is tuple and depth:
        return tuple(_followed(part, successors, depth - 1) for part in value)
    return value


def _resharded(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    if (
        not isinstance(value, torch.Tensor)
        or not isinstance(new, DTensor)
        or value.shape != old.shape
        or not value.dim()
    ):
        return value
    # State of a tensor-parallel parameter is a DTensor before FSDP shards it too.
    return value if isinstance(value, DTensor) and value.device_mesh == new.device_mesh else shard_like(value, new)
