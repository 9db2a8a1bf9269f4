"""An optimizer state that rank 0 alone has, given to all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from .mesh import device_of_group


def from_first_rank(state: Any, group: dist.ProcessGroup | None = None) -> Any:
    """``state`` of the first rank of ``group``, on every rank: nested dicts and lists, their tensors one by one.

    A collective over ``group``; the tensors come on the CPU. What the other ranks pass is not read.
    """
    first = dist.get_global_rank(group, 0) if group is not None else 0
    is_first = dist.get_rank() == first
    tensors: list[torch.Tensor] = []
    skeleton = [_map_tensors(state, lambda tensor: _take(tensor, tensors)) if is_first else None]
    dist.broadcast_object_list(skeleton, src=first, group=group)
    device = device_of_group(group)

    def receive(placeholder: torch.Tensor) -> torch.Tensor:
        if is_first:
            value = tensors.pop(0).detach().to(device).contiguous()
        else:
            value = torch.empty(placeholder.shape, dtype=placeholder.dtype, device=device)
        dist.broadcast(value, src=first, group=group)
        return value.cpu()

    return _map_tensors(skeleton[0], receive)


def _take(tensor: torch.Tensor, into: list[torch.Tensor]) -> torch.Tensor:
    into.append(tensor)
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: _map_tensors(part, function) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_map_tensors(part, function) for part in value)
    return value
