"""Optimizers whose groups hold sharded and ordinary parameters, as with ignored ones.

The kernels that torch runs on many tensors at once take either kind, not both. FSDP1's shards were ordinary tensors.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_pre_hooks, register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

_MANY_AT_ONCE = ("foreach", "fused")

#: The groups of an optimizer as they were before its step, with their parameters.
_whole: WeakKeyDictionary[Optimizer, list[tuple[dict[str, Any], list[torch.Tensor]]]] = WeakKeyDictionary()
_hooks: list[RemovableHandle] = []
#: The optimizers whose groups a hook joins after each step.
_joined: WeakSet[Optimizer] = WeakSet()


def split_in_steps() -> None:
    """Have each step split such groups after all hooks that are there now: they see those that the program made."""
    if not _hooks:
        _hooks.append(register_optimizer_step_pre_hook(_split_mixed_groups))
    if _hooks[0].id in _global_optimizer_pre_hooks:
        _global_optimizer_pre_hooks.move_to_end(_hooks[0].id)  # type: ignore[attr-defined]


def _split_mixed_groups(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """For one step, give the ordinary parameters of each group that a kernel takes at once a group of their own.

    So each kind is updated by the kernel that FSDP1's step ran on all of them: another one rounds otherwise on GPUs.
    """
    _join_groups(optimizer, args, kwargs)
    groups = optimizer.param_groups
    mixed = [
        group
        for group in groups
        if any(group.get(name, False) is not False for name in _MANY_AT_ONCE)
        and len({isinstance(param, DTensor) for param in group["params"]}) == 2
    ]
    if not mixed:
        return
    if optimizer not in _joined:
        hook = optimizer.register_step_post_hook(_join_groups)
        # Before all others, which see whole groups, too.
        optimizer._optimizer_step_post_hooks.move_to_end(hook.id, last=False)  # type: ignore[attr-defined]
        _joined.add(optimizer)
    _whole[optimizer] = [(group, group["params"]) for group in groups]
    for group in mixed:
        several = group["params"]
        group["params"] = [param for param in several if isinstance(param, DTensor)]
        groups.append({**group, "params": [param for param in several if not isinstance(param, DTensor)]})


def _join_groups(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Give ``optimizer`` the groups back that it had before its step, also where that has raised."""
    whole = _whole.pop(optimizer, None)
    if whole is None:
        return
    for group, params in whole:
        group["params"] = params
    optimizer.param_groups[:] = [group for group, _ in whole]
