"""A checkpoint as data: tensors made of chunks that lie somewhere in files, and the plain values between them.

Everything that reads a format gives these, everything that writes one takes them; no tensor is read before a chunk is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

#: The place of a value in nested dictionaries and lists: ``("model", "layers.0.weight")``.
Key: TypeAlias = tuple[str | int, ...]

#: Bytes per element by torch's name of the dtype.
ITEM_SIZES: Mapping[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "complex32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


#: torch counts the elements of a tensor in 64 bits.
_MOST_ELEMENTS = 2**63


class BadCheckpoint(Exception):
    """A file or folder that is no checkpoint, or a broken one; the message names the file and says what is wrong."""


@dataclass(frozen=True)
class Bytes:
    """Elements of one dtype in a file: from byte ``offset`` on, ``strides`` (in elements) apart per dimension.

    ``content`` is the CRC-32 of the storage that they lie in and the byte in it where they start, for those of an
    archive: what agrees in it, in strides and in shape holds the same elements, whichever file it lies in.
    """

    file: Path
    offset: int
    strides: tuple[int, ...]
    little_endian: bool = True
    content: tuple[int, int] | None = None


@dataclass(frozen=True)
class Item:
    """A whole file of ``torch.save`` inside another one, as torch.distributed.checkpoint writes its tensors."""

    file: Path
    offset: int
    length: int


@dataclass(frozen=True)
class Run:
    """``count`` elements from the one numbered ``first`` on, of something of one dimension that lies at ``where``."""

    where: Bytes | Item
    first: int
    count: int


@dataclass(frozen=True)
class Runs:
    """Elements in C order that lie in several places, as a parameter's do in the flat parameters of several ranks."""

    parts: tuple[Run, ...]


@dataclass(frozen=True)
class Chunk:
    """The box of a tensor that starts at ``offsets`` and has ``sizes``, and where its elements lie."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    where: Bytes | Item | Runs

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of a checkpoint. ``kind`` says as what it was saved: plain, ShardedTensor or DTensor, or
    sharded for one in safetensors of several ranks, whose shape is where the last of the parts ends.

    ``chunks`` may overlap, and may leave parts open where a file is missing. ``replicas`` are further copies of some of
    them, which hold the same elements in a checkpoint that is right. ``stored`` is the number of bytes of a tensor
    whose dtype has no size here; where it has one chunk, this starts at them. Raises ValueError for a shape that no
    tensor has.
    """

    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[Chunk, ...]
    kind: str = "plain"
    requires_grad: bool = False
    replicas: tuple[Chunk, ...] = ()
    stored: int | None = None

    def __post_init__(self) -> None:
        # Python does not spell the number that a few hundred large sizes make together.
        if self.numel >= _MOST_ELEMENTS:
            raise ValueError("a tensor of more elements than 64 bits can count")

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.numel * ITEM_SIZES.get(self.dtype, 0) if self.stored is None else self.stored


@dataclass(frozen=True)
class ValueEntry:
    """A number, string or other plain value.

    One that lies in a file of its own has ``where`` and no ``value``. One that could only be had by running code has
    no ``value`` either; ``made_by`` is the class or function that a pickle names for it.
    """

    value: Any = None
    where: Item | None = None
    made_by: str = ""


@dataclass(frozen=True)
class Damage:
    """Elements of the tensors ``keys`` that are not those that were saved, and how that shows."""

    keys: tuple[Key, ...]
    problem: str


Entries: TypeAlias = dict[Key, TensorEntry | ValueEntry]
#: The keys under which a list or a tuple lies; all others that hold something are dictionaries.
Sequences: TypeAlias = dict[Key, "type[list[Any]] | type[tuple[Any, ...]]"]


def tensors(entries: Entries) -> Iterator[tuple[Key, TensorEntry]]:
    """The tensors among ``entries``, in their order."""
    for key, entry in entries.items():
        if isinstance(entry, TensorEntry):
            yield key, entry


def box(chunk: Chunk) -> tuple[tuple[int, int], ...]:
    """The first index and the one behind the last, per dimension."""
    return tuple((first, first + size) for first, size in zip(chunk.offsets, chunk.sizes, strict=True))


def unlike(chunks: Iterable[Chunk]) -> tuple[tuple[Chunk, ...], tuple[Chunk, ...]]:
    """One chunk for each box, sorted, and the further copies of some of them."""
    boxes: dict[tuple[tuple[int, int], ...], Chunk] = {}
    copies = [chunk for chunk in chunks if boxes.setdefault(box(chunk), chunk) is not chunk]
    return tuple(boxes[place] for place in sorted(boxes)), tuple(copies)


def strides_of(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a tensor of ``sizes`` whose elements lie one behind the other, as torch counts them."""
    steps = [1]
    for size in reversed(sizes[1:]):
        steps.append(steps[-1] * max(size, 1))
    return tuple(reversed(steps))[: len(sizes)]


def spelled(key: Key) -> str:
    """The key as people write it, with dots."""
    return ".".join(map(str, key))
