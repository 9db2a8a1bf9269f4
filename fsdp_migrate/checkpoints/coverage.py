"""How many elements of a tensor its pieces cover, counted exactly however they overlap."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from fsdp_migrate.checkpoints.entries import BadCheckpoint

#: The first index and the one after the last, per dimension.
Box: TypeAlias = tuple[tuple[int, int], ...]

#: Pieces of real checkpoints are cut along few lines; these are made to take time.
_MOST_STEPS = 2_000_000
#: As many as torch's own indexing takes.
_MOST_DIMENSIONS = 64


def chunk_size(one: Iterable[tuple[int, int]]) -> int:
    """The number of elements in a box."""
    return math.prod(end - first for first, end in one)


def union(boxes: Sequence[Box]) -> int:
    """The number of elements that at least one of ``boxes`` covers; none of them is empty.

    Raises :class:`BadCheckpoint` where they overlap in more ways than can be counted.
    """
    same = [dim for dim, extents in enumerate(zip(*boxes, strict=True)) if len(set(extents)) == 1]
    cut = [dim for dim in range(len(boxes[0]) if boxes else 0) if dim not in set(same)]
    if len(cut) > _MOST_DIMENSIONS:
        raise BadCheckpoint(f"a tensor that is split along {len(cut)} dimensions (at most {_MOST_DIMENSIONS})")
    around = chunk_size([boxes[0][dim] for dim in same])
    return around * _Counting().volume(list(dict.fromkeys(tuple(one[dim] for dim in cut) for one in boxes)), 0)


class _Counting:
    def __init__(self) -> None:
        self._steps = 0

    def volume(self, boxes: list[Box], dim: int) -> int:
        """The volume of the union, dimensions before ``dim`` left out: slab by slab between the cuts along ``dim``."""
        if not boxes:
            return 0
        if dim == len(boxes[0]):
            return 1
        starts = sorted(boxes, key=lambda one: one[dim][0])
        cuts = sorted({cut for one in boxes for cut in one[dim]})
        covered, place = 0, 0
        active: list[Box] = []
        for cut, following in itertools.pairwise(cuts):
            active = [one for one in active if one[dim][1] > cut]
            while place < len(starts) and starts[place][dim][0] <= cut:
                active.append(starts[place])
                place += 1
            self._steps += 1 + len(active)
            if self._steps > _MOST_STEPS:
                raise BadCheckpoint("a tensor whose pieces overlap in too many ways to check")
            covered += (following - cut) * self.volume(active, dim + 1)
        return covered
