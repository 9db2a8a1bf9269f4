"""Optimizers whose groups hold sharded and ordinary parameters, as with ignored ones.

The kernels that torch runs on many tensors at once take either kind, not both. FSDP1's shards were ordinary tensors.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

_MANY_AT_ONCE = ("foreach", "fused")

#: The groups of an optimizer as they were before its step, with their parameters.
_whole: WeakKeyDictionary[Optimizer, list[tuple[dict[str, Any], list[torch.Tensor]]]] = WeakKeyDictionary()


def split_mixed_groups(optimizer: Optimizer) -> None:
    """For one step, give the ordinary parameters of each group that a kernel takes at once a group of their own.

    So each kind is updated by the kernel that FSDP1's step ran on all of them: another one rounds otherwise on GPUs.
    """
    join_groups(optimizer)
    groups = optimizer.param_groups
    mixed = [
        group
        for group in groups
        if any(group.get(name, False) is not False for name in _MANY_AT_ONCE)
        and len({isinstance(param, DTensor) for param in group["params"]}) == 2
    ]
    if not mixed:
        return
    _whole[optimizer] = [(group, group["params"]) for group in groups]
    for group in mixed:
        several = group["params"]
        group["params"] = [param for param in several if isinstance(param, DTensor)]
        groups.append({**group, "params": [param for param in several if not isinstance(param, DTensor)]})


def join_groups(optimizer: Optimizer) -> None:
    """Give ``optimizer`` the groups back that it had before its step, also where that has raised."""
    whole = _whole.pop(optimizer, None)
    if whole is None:
        return
    for group, params in whole:
        group["params"] = params
    optimizer.param_groups[:] = [group for group, _ in whole]
