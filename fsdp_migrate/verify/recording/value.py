"""One recorded tensor, or the part of it that one rank holds."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

#: The sampled bits of a complex tensor are those of one of a number's two parts.
_FORMATS = {
    **dict.fromkeys(("float64", "complex128"), ("<q", "<d")),
    **dict.fromkeys(("float32", "complex64"), ("<i", "<f")),
    "float16": ("<h", "<e"),
}
_WIDTHS = {"float64": 64, "complex128": 64, "float32": 32, "complex64": 32, "float16": 16, "bfloat16": 16}


@dataclass(frozen=True)
class Value:
    """``digest`` modulo 2 ** 64; ``l2``, ``total`` and ``greatest`` of the elements; bits of some by their position."""

    digest: int
    dtype: str
    numel: int
    l2: float
    total: float
    greatest: float
    nonfinite: int
    samples: Mapping[int, int]

    def same_bits(self, other: Value) -> bool:
        """Whether both hold the same elements, bit for bit."""
        return (self.digest, self.dtype, self.numel) == (other.digest, other.dtype, other.numel)

    def numbers(self) -> dict[int, float]:
        """The sampled elements by their position, as numbers."""
        return {position: number_of(bits, self.dtype) for position, bits in self.samples.items()}

    @property
    def is_zero(self) -> bool:
        return self.greatest == 0 and not self.nonfinite

    @property
    def scalar(self) -> float | None:
        """The number, where there is but one, and a real one."""
        return self.total if self.numel == 1 and not self.dtype.startswith("complex") else None


#: The copies of one tensor in the order of their ranks: one where it is sharded over all, as many as there are replicas
#: otherwise. None: there was no tensor, as for a gradient that was not computed.
Copies = tuple[Value | None, ...]


def read_value(written: list[Any] | None) -> Value | None:
    """What :mod:`fsdp_migrate.verify.recorder.values` wrote."""
    if written is None:
        return None
    digest, dtype, numel, squares, total, greatest, nonfinite, samples = written
    pairs = samples.items() if isinstance(samples, dict) else zip(*samples, strict=True)
    kept = {int(position): int(bits) for position, bits in pairs}
    return Value(digest % 2**64, dtype, numel, math.sqrt(squares), total, greatest, int(nonfinite), kept)


def together(parts: Iterable[Value | None], numel: int) -> Value | None:
    """The whole tensor of ``numel`` elements from what ranks have of it; None if none of them has any."""
    found = [part for part in parts if part is not None]
    if not found:
        return None
    whole = next((part for part in found if part.numel == numel), None)
    if whole is not None and numel:
        return whole
    samples: dict[int, int] = {}
    for part in found:
        samples.update(part.samples)
    return Value(
        sum(part.digest for part in found) % 2**64,
        found[0].dtype,
        sum(part.numel for part in found),
        math.hypot(*(part.l2 for part in found)),
        math.fsum(part.total for part in found) if all(math.isfinite(p.total) for p in found) else math.nan,
        max(part.greatest for part in found),
        sum(part.nonfinite for part in found),
        samples,
    )


def number_of(bits: int, dtype: str) -> float:
    """The number that these bits, as a signed integer of the same width, stand for."""
    if dtype == "bfloat16":
        return float(struct.unpack("<f", struct.pack("<I", (bits & 0xFFFF) << 16))[0])
    if dtype in _FORMATS:
        as_bits, as_number = _FORMATS[dtype]
        return float(struct.unpack(as_number, struct.pack(as_bits, bits))[0])
    return float(bits)


def ulps_between(first: int, second: int, dtype: str) -> int | None:
    """How many floating-point numbers of ``dtype`` lie from one to the other; None for other dtypes."""
    width = _WIDTHS.get(dtype)
    return None if width is None else abs(_ordered(first, width) - _ordered(second, width))


def _ordered(bits: int, width: int) -> int:
    return bits if bits >= 0 else -(bits + (1 << (width - 1)))
