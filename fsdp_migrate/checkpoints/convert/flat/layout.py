"""Where in a flat parameter of FSDP1 the parameters lie.

They lie end to end in the order of the module's parameters, each one once. With ``use_orig_params=True`` each starts at
a multiple of 16 bytes of the dtype that is computed in, which mixed precision makes another than that of the flat
parameter, and the end is padded to a multiple of the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.entries import ITEM_SIZES, Bytes, Chunk, Item, Run, Runs, TensorEntry

_ALIGNMENT = 16
#: Elements that 16 bytes are, of the dtypes that mixed precision computes in.
_COMPUTED_IN = (4, 8)
_MOST_ENDS = 20_000

#: A parameter's name and the number of its first element in the flat parameter.
Starts = Mapping[str, int]


@dataclass(frozen=True)
class Member:
    """A parameter that lies in a flat parameter; one that is not ``sure`` may lie beside it, under its own name.

    ``part`` is how many of its elements some rank holds, where that is known.
    """

    name: str
    numel: int
    sure: bool = True
    part: int | None = None


def alignments(dtype: str) -> tuple[int, ...]:
    """The numbers of elements to whose multiples parameters may have been aligned; 1 is no alignment."""
    return tuple(dict.fromkeys((1, max(1, _ALIGNMENT // ITEM_SIZES[dtype]), *_COMPUTED_IN)))


def ends(members: Sequence[Member], world_size: int, dtype: str) -> list[int]:
    """The sizes of a flat parameter of all ``members``, per alignment."""
    return sorted({_padded(_last(members, aligned), world_size, aligned) for aligned in alignments(dtype)})


def fitting(members: Sequence[Member], total: int, world_size: int, dtype: str) -> list[Starts]:
    """The ways, two at most, in which ``members`` in this order fill a flat parameter of ``total`` elements.

    Those that are not sure are tried with and without.
    """
    found: list[Starts] = []
    for aligned in alignments(dtype):
        for way in _ways(members, total, world_size, aligned):
            if way not in found:
                found.append(way)
    return found[:2]


def is_one(starts: Starts, members: Sequence[Member], total: int, world_size: int, dtype: str) -> bool:
    """Whether FSDP1 would have laid out ``members``, in this order, at ``starts``."""
    return any(starts == way for aligned in alignments(dtype) for way in _ways(members, total, world_size, aligned))


def shard_count(flat: TensorEntry) -> int:
    """The number of ranks that hold a part of a flat parameter; those with nothing do not count."""
    sizes = [chunk.numel for chunk in flat.chunks if chunk.numel]
    return -(-flat.numel // max(sizes)) if sizes else 1


def taken(flat: TensorEntry, start: int, shape: tuple[int, ...], name: str) -> TensorEntry:
    """The tensor of ``shape`` whose elements lie in ``flat`` from number ``start`` on.

    Raises :class:`CannotConvert` where some of them lie nowhere, or in several places.
    """
    count = math.prod(shape)
    parts = tuple(_runs(flat, start, start + count))
    if sum(part.count for part in parts) != count:
        raise CannotConvert(f"some elements of {name} are missing or duplicated")
    return TensorEntry(shape, flat.dtype, (Chunk((0,) * len(shape), shape, Runs(parts)),))


def end_to_end(parts: Sequence[TensorEntry]) -> TensorEntry:
    """The tensor of one dimension that ``parts`` of one dimension are, one behind the other."""
    chunks, start = [], 0
    for part in parts:
        for chunk in part.chunks:
            chunks.append(replace(chunk, offsets=(start + chunk.offsets[0],)))
        start += part.numel
    return TensorEntry((start,), parts[0].dtype, tuple(chunks))


def _runs(flat: TensorEntry, first: int, end: int) -> Iterator[Run]:
    for chunk in sorted(flat.chunks, key=lambda chunk: chunk.offsets):
        (offset,), (size,) = chunk.offsets, chunk.sizes
        start, stop = max(first, offset), min(end, offset + size)
        if start < stop and isinstance(chunk.where, Bytes | Item):
            yield Run(chunk.where, start - offset, stop - start)


def _ways(members: Sequence[Member], total: int, world_size: int, aligned: int) -> Iterator[Starts]:
    ways: dict[int, list[tuple[tuple[str, int], ...]]] = {0: [()]}
    for member in members:
        reached: dict[int, list[tuple[tuple[str, int], ...]]] = {}
        for end, before in ways.items():
            if not member.sure:
                reached.setdefault(end, []).extend(before)
            start = _up_to(end, aligned)
            if start + member.numel <= total and _may_hold(member, start, -(-total // world_size)):
                placed = [(*way, (member.name, start)) for way in before]
                reached.setdefault(start + member.numel, []).extend(placed)
        if len(reached) > _MOST_ENDS:
            raise CannotConvert(f"{member.name} and others may be in a flat parameter or next to it, in too many ways")
        # Two ways to one place are as undecided as more.
        ways = {end: found[:2] for end, found in reached.items()}
    for end, found in ways.items():
        if _padded(end, world_size, aligned) == total:
            yield from map(dict, found)


def _may_hold(member: Member, start: int, shard: int) -> bool:
    """Whether a rank would hold as many elements of ``member`` as one does, if it began at ``start``."""
    if not member.part:
        return True
    end = start + member.numel
    ranks = range(start // shard, -(-end // shard))
    return member.part in {min(end, (rank + 1) * shard) - max(start, rank * shard) for rank in ranks}


def _last(members: Sequence[Member], aligned: int) -> int:
    end = 0
    for member in members:
        end = _up_to(end, aligned) + member.numel
    return end


def _padded(end: int, world_size: int, aligned: int) -> int:
    return _up_to(end, world_size) if aligned > 1 else end


def _up_to(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
