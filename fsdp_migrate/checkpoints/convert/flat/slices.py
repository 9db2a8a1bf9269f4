"""Where in flat parameters the slices lie that ranks saved under parameters' own names, told by the files alone.

With ``use_orig_params=True`` every parameter of a rank is a view of the rank's part of the flat parameter, and
``torch.save`` keeps views of one storage in one place: a slice lies within the bytes of that part.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.entries import ITEM_SIZES, Bytes, Entries, Key, spelled, tensors
from fsdp_migrate.checkpoints.read.torch_save import TorchFile


@dataclass(frozen=True, order=True)
class Place:
    """``count`` elements of the flat parameter under the key ``flat``, from number ``start`` on."""

    flat: Key
    start: int
    count: int


@dataclass(frozen=True, order=True)
class _Part:
    """The bytes of a file that are a rank's part of a flat parameter, and the number of its first element in that."""

    file: Path
    begin: int
    end: int
    first: int
    flat: Key
    dtype: str


def places(ranks: Mapping[int, TorchFile], flats: Collection[Key]) -> dict[Key, Place]:
    """The place of every tensor with a slice within a flat parameter's bytes, the slices of all ranks put together.

    Raises :class:`CannotConvert` where those of one tensor do not lie one behind the other.
    """
    found: dict[Key, set[Place]] = defaultdict(set)
    for file in ranks.values():
        for key, place in _of_rank(file.entries, flats):
            found[key].add(place)
    return {key: _joined(key, sorted(parts)) for key, parts in found.items()}


def _of_rank(entries: Entries, flats: Collection[Key]) -> Iterator[tuple[Key, Place]]:
    parts = sorted(_parts(entries, flats))
    begins = [(part.file, part.begin) for part in parts]
    for key, entry in tensors(entries):
        where = entry.chunks[0].where if len(entry.chunks) == 1 else None
        if key in flats or len(entry.shape) != 1 or not entry.numel or not isinstance(where, Bytes):
            continue
        index = bisect_right(begins, (where.file, where.offset)) - 1
        if index < 0 or where.strides != (1,):
            continue
        part, size = parts[index], ITEM_SIZES[entry.dtype]
        if part.file == where.file and where.offset + entry.numel * size <= part.end and part.dtype == entry.dtype:
            yield key, Place(part.flat, part.first + (where.offset - part.begin) // size, entry.numel)


def _parts(entries: Entries, flats: Collection[Key]) -> Iterator[_Part]:
    for key in flats:
        entry = entries.get(key)
        for _, flat in tensors({key: entry} if entry is not None else {}):
            for chunk in flat.chunks:
                if isinstance(chunk.where, Bytes) and chunk.where.strides == (1,) and chunk.numel:
                    end = chunk.where.offset + chunk.numel * ITEM_SIZES[flat.dtype]
                    yield _Part(chunk.where.file, chunk.where.offset, end, chunk.offsets[0], key, flat.dtype)


def _joined(key: Key, parts: list[Place]) -> Place:
    for before, after in itertools.pairwise(parts):
        if before.flat != after.flat or before.start + before.count != after.start:
            raise CannotConvert(
                f"the slices of {spelled(key)} on several ranks are not contiguous in {spelled(before.flat)}"
            )
    return Place(parts[0].flat, parts[0].start, sum(part.count for part in parts))
