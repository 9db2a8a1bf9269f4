"""An optimizer state that rank 0 alone has, given to all ranks one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from fsdp_compat.planning.mesh import device_of_group
from fsdp_compat.torch_.param_groups import managed_parameters
from fsdp_compat.units import fsdp_modules


class FromFirstRank:
    """``state`` of the first rank, on every rank: nested dicts and lists, whose tensors come one by one.

    ``skeleton`` is the state with placeholders for its tensors. What the other ranks pass is not read. All ranks
    build one, and call :meth:`tensor` for all placeholders in the same order: both are collectives. So no rank but
    the first holds more than one whole tensor at a time.

    Without ``group`` the ranks are those that ``model`` is sharded over.
    """

    def __init__(self, state: Any, model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        self._groups = [group] if group is not None else _groups_of(model)
        self._is_first = all(dist.get_rank(one) == 0 for one in self._groups)
        self._tensors: dict[int, torch.Tensor] = {}
        skeleton = [map_tensors(state, self._take) if self._is_first else None]
        for one in self._groups:
            dist.broadcast_object_list(skeleton, src=_first_of(one), group=one)
        self.skeleton: Any = skeleton[0]

    def tensor(self, placeholder: torch.Tensor) -> torch.Tensor:
        """The tensor that ``placeholder`` stands for, on the CPU; the first rank's own if it is there."""
        for number, one in enumerate(self._groups):
            device = device_of_group(one)
            if number == 0:
                value = (
                    self._tensors[id(placeholder)].detach().to(device).contiguous()
                    if self._is_first
                    else torch.empty(placeholder.shape, dtype=placeholder.dtype, device=device)
                )
            dist.broadcast(value, src=_first_of(one), group=one)
        own = self._tensors.get(id(placeholder))
        return own.detach() if own is not None and own.device.type == "cpu" else value.cpu()

    def _take(self, tensor: torch.Tensor) -> torch.Tensor:
        placeholder = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        self._tensors[id(placeholder)] = tensor
        return placeholder


def is_first_rank(model: nn.Module, group: dist.ProcessGroup | None = None) -> bool:
    """Whether this is rank 0 of ``group``, or without one the first of the ranks that ``model`` is sharded over."""
    return all(dist.get_rank(one) == 0 for one in ([group] if group is not None else _groups_of(model)))


def meshes_of(model: nn.Module) -> list[DeviceMesh]:
    """The meshes that the units of ``model`` are sharded over, each once."""
    meshes: dict[DeviceMesh, None] = {}
    for unit in fsdp_modules(model):
        meshes.update((managed.sharded.device_mesh, None) for managed in managed_parameters(unit))
    return list(meshes)


def _groups_of(model: nn.Module) -> list[dist.ProcessGroup]:
    for mesh in meshes_of(model):
        # What the first rank of the first dimension sends along it, each of those sends along the next.
        dimensions = [dimension for dimension in range(mesh.ndim) if mesh.size(dimension) > 1]
        return [mesh.get_group(dimension) for dimension in dimensions or [0]]
    assert dist.group.WORLD is not None
    return [dist.group.WORLD]


def _first_of(group: dist.ProcessGroup) -> int:
    return dist.get_global_rank(group, 0)


def map_tensors(value: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """``value`` with ``function`` applied to its tensors, however deep in dicts, lists and tuples."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {key: map_tensors(part, function) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(part, function) for part in value)
    return value
