"""Which elements of which parameter this rank has in a tensor that an optimizer steps, for every kind of sharding."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .digest import Grid, Place, Range

_WRAPPERS = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")


@dataclass(frozen=True)
class Part:
    """This rank's elements of one parameter.

    ``cut``: their offset and number in the local tensor, flattened; None: all of it. ``shape``: of the whole parameter.
    ``replica``: the least rank of those that hold one copy between them.
    """

    shape: tuple[int, ...]
    place: Place
    replica: int
    cut: tuple[int, int] | None = None

    @functools.cached_property
    def whole(self) -> int:
        """Elements of the whole parameter."""
        return math.prod(self.shape)

    @functools.cached_property
    def numel(self) -> int:
        """Elements on this rank."""
        if isinstance(self.place, Range):
            return self.place.length
        return int(torch.Size([len(axis) for axis in self.place.axes]).numel())

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """This part of ``tensor``, which is laid out as the parameter: itself, its gradient or its state."""
        local = local_of(tensor)
        if self.cut is None:
            return local
        offset, length = self.cut
        return local.reshape(-1)[offset : offset + length]


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The elements of ``tensor`` on this rank, without communication."""
    while hasattr(tensor, "_local_tensor"):
        tensor = tensor._local_tensor
    return tensor.detach()


def clean(name: str) -> str:
    """A name without what wrappers put into it."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    return ".".join(parts)


def rank() -> int:
    dist = sys.modules.get("torch.distributed")
    return int(dist.get_rank()) if dist is not None and dist.is_available() and dist.is_initialized() else 0


def plain_part(tensor: torch.Tensor) -> Part:
    """A tensor that is whole on this rank, or a DTensor."""
    if hasattr(tensor, "device_mesh"):
        return _dtensor_part(tensor)
    shape = tuple(tensor.shape)
    return Part(shape, Range(0, tensor.numel(), tensor.numel()), rank())


def _dtensor_part(tensor: Any) -> Part:
    mesh, shape = tensor.device_mesh, tuple(tensor.shape)
    coordinate = mesh.get_coordinate()
    axes = [torch.arange(size) for size in shape]
    # Strided placements cut last: FSDP cuts what a later mesh dimension (tensor parallelism) has left to a rank.
    cuts = sorted(enumerate(tensor.placements), key=lambda cut: hasattr(cut[1], "split_factor"))
    sharded = set()
    for mesh_dim, placement in cuts:
        if not hasattr(placement, "dim"):
            continue
        count, dim = mesh.size(mesh_dim), placement.dim
        if count == 1:
            continue
        sharded.add(mesh_dim)
        chunks = torch.chunk(axes[dim], count)
        mine = coordinate[mesh_dim]
        axes[dim] = chunks[mine] if mine < len(chunks) else axes[dim][:0]
    replica = _replica_of(mesh, coordinate, sharded)
    return Part(shape, _place(tuple(axes), shape), replica)


def _replica_of(mesh: Any, coordinate: list[int], sharded: set[int]) -> int:
    ranks = mesh.mesh
    for mesh_dim in reversed(range(ranks.ndim)):
        if mesh_dim not in sharded:
            ranks = ranks.select(mesh_dim, coordinate[mesh_dim])
    return int(ranks.min())


def _place(axes: tuple[torch.Tensor, ...], shape: tuple[int, ...]) -> Place:
    rest = int(torch.Size(shape[1:]).numel())
    whole_rows = all(len(axis) == size for axis, size in zip(axes[1:], shape[1:], strict=True))
    if not axes:
        return Range(0, 1, 1)
    first = axes[0]
    if whole_rows and (not len(first) or int(first[-1]) - int(first[0]) + 1 == len(first)):
        start = int(first[0]) * rest if len(first) else 0
        return Range(start, len(first) * rest, shape[0] * rest)
    return Grid(axes, shape)


def flat_parts(handle: Any, replica: int) -> Iterator[tuple[str, Part]]:
    """Names inside the unit, and this rank's part, of each parameter in the flat parameter of an FSDP1 unit."""
    flat = handle.flat_param
    offset = 0
    for fqn, shape, numel, info in zip(flat._fqns, flat._shapes, flat._numels, flat._shard_param_infos, strict=True):
        if not handle.uses_sharded_strategy:
            yield fqn, Part(tuple(shape), Range(0, numel, numel), rank(), (offset, numel))
        elif info.in_shard:
            start, length = info.intra_param_start_idx, info.numel_in_shard
            yield fqn, Part(tuple(shape), Range(start, length, numel), replica, (info.offset_in_shard, length))
        else:
            yield fqn, Part(tuple(shape), Range(0, 0, numel), replica, (0, 0))
        offset += numel


def without_cut(part: Part) -> Part:
    """The same part of a tensor that holds nothing else on this rank."""
    return Part(part.shape, part.place, part.replica)
