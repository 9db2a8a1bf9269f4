"""Which box of a tensor a rank's ShardedTensor or DTensor holds, from what its pickle says about itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fsdp_migrate.checkpoints.read.unpickle import Call, described, global_of


@dataclass(frozen=True)
class Place:
    """A box of a tensor, and who holds it: the rank where the pickle says it, and how many ranks there are."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    rank: int | None
    world_size: int | None


def attributes(value: Any) -> dict[str, Any]:
    """What a pickle sets on an object, with ``__dict__`` or with slots. Raises ValueError for another state."""
    state = value.state if isinstance(value, Call) else value
    parts = state if isinstance(state, tuple) else (state,)
    found: dict[str, Any] = {}
    for part in parts:
        if part is not None and not isinstance(part, dict):
            raise ValueError("an object whose attributes are not a dictionary")
        found |= part or {}
    return found


def integers(value: Any) -> tuple[int, ...]:
    """A tuple, list or ``torch.Size`` of integers that are not negative. Raises ValueError for anything else."""
    if isinstance(value, Call):
        value = value.arguments[0] if value.arguments else ()
    if not isinstance(value, tuple | list) or not all(type(part) is int and 0 <= part < 2**63 for part in value):
        raise ValueError("an invalid shape")
    return tuple(value)


def group_of(state: Any) -> tuple[int | None, int | None]:
    """Rank and world size from the process group that a ShardedTensor remembers."""
    group = attributes(state)
    return group.get("global_rank"), group.get("global_world_size")


def of_dtensor(spec: dict[str, Any], shape: tuple[int, ...]) -> Place:
    """The box that the rank which saved it holds. Raises ValueError for placements that no rank alone can resolve."""
    mesh = attributes(spec["mesh"])
    sizes = _mesh_shape(mesh)
    coordinate = mesh.get("_coordinate_on_dim")
    if coordinate is None or len(coordinate) != len(sizes):
        raise ValueError("a DTensor saved on a rank outside its mesh")
    offsets, box = [0] * len(shape), list(shape)
    for dim, count, index in _splits(spec["placements"], sizes, integers(tuple(coordinate))):
        step = -(-box[dim] // count) if box[dim] else 0
        first = min(index * step, box[dim])
        offsets[dim] += first
        box[dim] = min(step, box[dim] - first)
    rank = mesh.get("_rank")
    ranks = mesh.get("_flatten_rank_map")
    world_size = len(ranks) if isinstance(ranks, tuple) else math.prod(sizes)
    return Place(tuple(offsets), tuple(box), rank if isinstance(rank, int) else None, world_size)


def _splits(
    placements: Sequence[Any], sizes: tuple[int, ...], coordinate: tuple[int, ...]
) -> Iterator[tuple[int, int, int]]:
    """Tensor dimension, number of parts and index of the part, in the order in which the tensor was split.

    A strided shard, which FSDP makes of a tensor that tensor parallelism has split, comes after all others.
    """
    later = []
    for placement, count, index in zip(placements, sizes, coordinate, strict=True):
        name = placement.function.name.rpartition(".")[2]
        if name == "Replicate":
            continue
        if name not in ("Shard", "_StridedShard"):
            raise ValueError(f"the placement {name}, whose values are spread over ranks")
        dim = attributes(placement).get("dim", placement.arguments[0] if placement.arguments else None)
        if type(dim) is not int:
            raise ValueError("a shard without a dimension")
        if name == "Shard":
            yield dim, count, index
        else:
            later.append((dim, count, index))
    yield from later


def _mesh_shape(mesh: dict[str, Any]) -> tuple[int, ...]:
    """From the layout of torch 2.10 and later, or from the tensor of ranks of those before."""
    if "_layout" not in mesh:
        return integers(mesh["mesh"].arguments[2])
    layout = attributes(mesh["_layout"])
    if "axes" in layout:
        return tuple(math.prod(_flat(attributes(axis)["shape"])) for axis in layout["axes"])
    shape = layout["shape"]
    return tuple(math.prod(_flat(part)) for part in (shape if isinstance(shape, tuple) else (shape,)))


def _flat(shape: Any) -> Iterator[int]:
    """The sizes in a shape of shapes, which the layout of torch's meshes has one level of."""
    for part in shape if isinstance(shape, tuple) else (shape,):
        yield from map(int, part) if isinstance(part, tuple) else (int(part),)


def dtype_name(value: Any) -> str:
    """``torch.float32`` as ``float32``. Raises ValueError for what is no dtype."""
    named = global_of(value)
    if named is None or named.module != "torch":
        raise ValueError(f"{described(value)} is not a dtype")
    return named.name
