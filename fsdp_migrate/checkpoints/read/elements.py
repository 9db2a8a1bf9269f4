"""The elements of tensors, read from the files that they lie in, one chunk at a time.

Elements are bytes here: arrays of ``uint8`` in C order, little-endian, whatever the dtype, so that nothing is rounded
and dtypes that numpy lacks are no different from others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fsdp_migrate.checkpoints.entries import (
    ITEM_SIZES,
    BadCheckpoint,
    Bytes,
    Chunk,
    Item,
    Run,
    Runs,
    TensorEntry,
    box,
    strides_of,
)
from fsdp_migrate.checkpoints.read.torch_save import tensor_in
from fsdp_migrate.checkpoints.traits import overlaps

Elements: TypeAlias = npt.NDArray[np.uint8]

#: What is in memory at once of elements that are read as they lie.
_STRETCH = 2**20
#: The bits that are all set in what is not finite, by dtype.
_EXPONENTS = {
    "float16": ("<u2", 0x7C00),
    "bfloat16": ("<u2", 0x7F80),
    "float32": ("<u4", 0x7F800000),
    "float64": ("<u8", 0x7FF0000000000000),
}
_COMPLEX = ("complex32", "complex64", "complex128")


def of_chunk(chunk: Chunk, dtype: str) -> Elements:
    """The bytes of the elements of ``chunk``, ``chunk.numel`` times the size of the dtype.

    Raises :class:`BadCheckpoint` where the file does not hold them.
    """
    held = np.empty(chunk.numel * ITEM_SIZES[dtype], np.uint8)
    read_into(held, chunk, dtype)
    return held


def read_into(target: Elements, chunk: Chunk, dtype: str) -> None:
    """As :func:`of_chunk`, into bytes that are there already."""
    if not chunk.numel:
        return
    if isinstance(chunk.where, Runs):
        _read_runs(target, chunk.where, dtype)
    else:
        _read_strided(target, _bytes(chunk.where, chunk.sizes, dtype), chunk.sizes, dtype)


def whole(entry: TensorEntry) -> Elements:
    """The bytes of all elements of the tensor, its chunks put together.

    Takes the memory of the tensor, and for chunks that are not whole rows, overlap or are replicas that of the largest
    of them besides. What no chunk covers is not defined. Raises :class:`BadCheckpoint` where two chunks hold different
    elements for one place.
    """
    if entry.stored is not None:
        return _stored(entry)
    size = ITEM_SIZES[entry.dtype]
    held = np.empty(entry.numel * size, np.uint8)
    boxed = held.reshape(*entry.shape, size)
    earlier: list[Chunk] | None = [] if overlaps(entry) else None
    for chunk in entry.chunks:
        if chunk.numel:
            part = boxed[_slices(box(chunk))]
            if part.flags.c_contiguous and not earlier:
                read_into(part.reshape(-1), chunk, entry.dtype)
            else:
                elements = of_chunk(chunk, entry.dtype).reshape(*chunk.sizes, size)
                for other in earlier or ():
                    _refuse_other(boxed, elements, chunk, other)
                part[...] = elements
            if earlier is not None:
                earlier.append(chunk)
    for chunk in entry.replicas:
        if chunk.numel:
            _refuse_other(boxed, of_chunk(chunk, entry.dtype).reshape(*chunk.sizes, size), chunk, chunk)
    return held


def stretches(entry: TensorEntry, first: int = 0) -> Iterator[Elements]:
    """The bytes of :func:`whole` from ``first`` on, a stretch at a time where a file has them as they are."""
    where = as_it_lies(entry)
    if where is None:
        yield whole(entry)[first:]
        return
    for start in range(first, entry.nbytes, _STRETCH):
        held = np.empty(min(_STRETCH, entry.nbytes - start), np.uint8)
        _read(where.file, where.offset + start, held)
        yield held


def is_finite(entry: TensorEntry) -> bool:
    """Whether no element of the tensor is infinite or not a number, as far as its dtype has such."""
    unsigned, exponent = _EXPONENTS.get(entry.dtype, ("", 0))
    return not unsigned or not any(
        np.any(stretch.view(unsigned) & exponent == exponent) for stretch in stretches(entry)
    )


def as_it_lies(entry: TensorEntry) -> Bytes | None:
    """Where all bytes of the tensor lie in the order of its elements; None where they do not."""
    if entry.stored is not None or entry.replicas or len(entry.chunks) != 1:
        return None
    (chunk,) = entry.chunks
    if isinstance(chunk.where, Runs) or chunk.sizes != entry.shape or not entry.numel:
        return None
    where = _bytes(chunk.where, chunk.sizes, entry.dtype)
    return where if where.little_endian and where.strides == strides_of(chunk.sizes) else None


def refuse_other_replicas(entry: TensorEntry, chunk: Chunk, held: Elements) -> None:
    """Raise :class:`BadCheckpoint` where a replica of ``chunk`` holds other elements than ``held``."""
    for replica in entry.replicas:
        if box(replica) == box(chunk) and not np.array_equal(of_chunk(replica, entry.dtype), held):
            raise BadCheckpoint(_differ(replica))


def _stored(entry: TensorEntry) -> Elements:
    """The bytes of a tensor whose dtype has no size here, as they are."""
    (chunk,) = entry.chunks
    held = np.empty(entry.nbytes, np.uint8)
    if not isinstance(chunk.where, Bytes):
        raise BadCheckpoint(f"a tensor of {entry.dtype}, whose size is unknown, stored in several places")
    _read(chunk.where.file, chunk.where.offset, held)
    return held


def _refuse_other(boxed: Elements, elements: Elements, chunk: Chunk, other: Chunk) -> None:
    """Raise where what ``boxed`` has of ``other`` is not what ``chunk``, whose elements these are, has there."""
    pairs = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(box(chunk), box(other), strict=True)]
    if all(first < end for first, end in pairs) or not pairs:
        inside = [(first - start, end - start) for (first, end), start in zip(pairs, chunk.offsets, strict=True)]
        if not np.array_equal(boxed[_slices(pairs)], elements[_slices(inside)]):
            raise BadCheckpoint(_differ(chunk))


def _differ(chunk: Chunk) -> str:
    file = chunk.where.parts[0].where.file if isinstance(chunk.where, Runs) else chunk.where.file
    return f"{file}: from element {chunk.offsets}, the values differ from another copy in the same checkpoint"


def _slices(pairs: Sequence[tuple[int, int]]) -> tuple[slice, ...]:
    return tuple(slice(first, end) for first, end in pairs)


def _bytes(where: Bytes | Item, sizes: tuple[int, ...], dtype: str) -> Bytes:
    if isinstance(where, Bytes):
        return where
    found = tensor_in(where)
    if found.dtype != dtype or found.shape != sizes or not isinstance(found.chunks[0].where, Bytes):
        raise BadCheckpoint(
            f"{where.file}, from byte {where.offset}: {found.dtype} of shape {found.shape}, but the rest of the "
            f"checkpoint says {dtype} of shape {sizes}"
        )
    return found.chunks[0].where


def _read_runs(target: Elements, runs: Runs, dtype: str) -> None:
    size = ITEM_SIZES[dtype]
    start = 0
    for run in runs.parts:
        _read_run(target[start * size : (start + run.count) * size], run, dtype)
        start += run.count


def _read_run(target: Elements, run: Run, dtype: str) -> None:
    where = run.where
    if isinstance(where, Item):
        found = tensor_in(where)
        if found.dtype != dtype or len(found.shape) != 1 or run.first + run.count > found.numel:
            raise BadCheckpoint(f"{where.file}, from byte {where.offset}: {found.dtype} of shape {found.shape}")
        where = _bytes(where, found.shape, dtype)
    step = where.strides[0] if where.strides else 1
    begins = Bytes(where.file, where.offset + run.first * step * ITEM_SIZES[dtype], (step,), where.little_endian)
    _read_strided(target, begins, (run.count,), dtype)


def _read_strided(target: Elements, where: Bytes, sizes: tuple[int, ...], dtype: str) -> None:
    size = ITEM_SIZES[dtype]
    if where.strides == strides_of(sizes) or math.prod(sizes) == 1:
        _read(where.file, where.offset, target)
    else:
        # What lies between the elements may be larger than all of them, so it must not take memory.
        last = sum((count - 1) * stride for count, stride in zip(sizes, where.strides, strict=True))
        try:
            span = np.memmap(where.file, np.uint8, "r", where.offset, ((last + 1) * size,))
        except (OSError, ValueError) as error:
            raise BadCheckpoint(f"{where.file}: could not read from byte {where.offset}: {error}") from error
        steps = (*(stride * size for stride in where.strides), 1)
        target.reshape(*sizes, size)[...] = np.lib.stride_tricks.as_strided(span, (*sizes, size), steps)
    if not where.little_endian:
        half = size // 2 if dtype in _COMPLEX else size
        target.reshape(-1, half)[...] = target.reshape(-1, half)[:, ::-1].copy()


def _read(path: Path, offset: int, target: Elements) -> None:
    try:
        with path.open("rb", buffering=0) as stream:
            stream.seek(offset)
            view, done = target.data, 0
            while done < len(view):
                count = stream.readinto(view[done:])
                if not count:
                    raise BadCheckpoint(f"{path}: it ends at byte {offset + done}, within a tensor")
                done += count
    except OSError as error:
        raise BadCheckpoint(f"{path}: could not read: {error.strerror or error}") from error
