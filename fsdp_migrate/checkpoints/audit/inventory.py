"""What a reading finds: leaves by their keys, and where the elements of tensors are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias


class Disagrees(Exception):
    """Two readings differ, or the second one finds something that the first did not refuse; the message says what."""


@dataclass(frozen=True)
class Odd:
    """A part of a key that is neither a text nor a number."""


#: One mark for all of them: they are counted and not compared.
ODD = Odd()

#: The place of a leaf, part by part.
Name: TypeAlias = "tuple[str | int | Odd, ...]"


@dataclass(frozen=True)
class Place:
    """Elements in a file: from byte ``start`` on, ``strides`` (in elements of ``size`` bytes) apart.

    ``unit`` are the bytes that are turned around where ``swapped``. ``item``: the first byte of their archive.
    """

    file: Path
    start: int
    size: int
    strides: tuple[int, ...]
    item: int = 0
    swapped: bool = False
    unit: int = 1


@dataclass(frozen=True)
class Part:
    """The box of a tensor from ``first`` on."""

    first: tuple[int, ...]
    sizes: tuple[int, ...]
    place: Place


@dataclass(frozen=True)
class Tensor:
    """A tensor and its parts; ``nbytes`` where the size of its dtype is unknown."""

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]
    nbytes: int | None = None


@dataclass(frozen=True)
class Plain:
    """A number, a text, bytes, None or an empty container."""

    value: Any


@dataclass(frozen=True)
class Foreign:
    """Something that only running code could make, or that has no place in another format."""

    name: str


Leaf: TypeAlias = "Tensor | Plain | Foreign"


def count(sizes: tuple[int, ...]) -> int:
    """The number of elements of a box."""
    return math.prod(sizes)


def item_size(dtype: str) -> int | None:
    """Bytes per element, by the digits of torch's name; None for a dtype without any."""
    if dtype == "bool" or dtype.endswith("_x2"):
        return 1
    digits = "".join(letter if letter in "0123456789" else " " for letter in dtype).split()
    known = dtype.rstrip("0123456789_efmnuz").rstrip("0123456789") in ("float", "bfloat", "int", "uint", "complex")
    return int(digits[0]) // 8 if known and digits and int(digits[0]) % 8 == 0 else None
