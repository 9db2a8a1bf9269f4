"""Says where two training runs differ, bit for bit unless there is a reason why they cannot agree to the last bit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.parity.tolerance import NORM_TOLERANCE, SMALL, Tolerance


def differences(before: Mapping[str, Any], after: Mapping[str, Any], allowed: Tolerance) -> list[str]:
    """One line for each thing in which ``after`` differs from ``before``: the results of two runs of a program."""
    return [
        *differ("loss", before["losses"], after["losses"], allowed.relative),
        *differ("norm", before["norms"], after["norms"], max(NORM_TOLERANCE, allowed.relative)),
        *differ("extra", before["extra"], after["extra"], allowed.relative),
        *differ("weight", before["weights"], after["weights"], allowed.relative),
    ]


def differ(what: str, before: Any, after: Any, relative: float = 0.0) -> Iterator[str]:
    """One line for each number, tensor, key or type in which two nested values differ."""
    if type(before) is not type(after) and not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        yield f"{what}: {type(before).__name__} became {type(after).__name__}"
    elif isinstance(before, Mapping):
        if gone := before.keys() - after.keys():
            yield f"{what}: missing {', '.join(sorted(gone))}"
        if new := after.keys() - before.keys():
            yield f"{what}: new {', '.join(sorted(new))}"
        for key in before.keys() & after.keys():
            yield from differ(f"{what} {key}", before[key], after[key], relative)
    elif isinstance(before, Sequence) and not isinstance(before, str):
        if len(before) != len(after):
            yield f"{what}: {len(before)} values became {len(after)}"
        for index, (left, right) in enumerate(zip(before, after, strict=False)):
            yield from differ(f"{what}[{index}]", left, right, relative)
    elif isinstance(before, float):
        if not _close(before, after, relative):
            yield f"{what}: {before!r} became {after!r}"
    elif hasattr(before, "dtype"):
        yield from _tensors_differ(what, before, after, relative)
    elif before != after:
        yield f"{what}: {before!r} became {after!r}"


def _close(before: float, after: float, relative: float) -> bool:
    if math.isnan(before) or math.isnan(after):
        return math.isnan(before) and math.isnan(after)
    return abs(before - after) <= relative * max(abs(before), abs(after))


def _tensors_differ(what: str, before: Any, after: Any, relative: float) -> Iterator[str]:
    if (before.dtype, before.shape) != (after.dtype, after.shape):
        yield f"{what}: {before.dtype} {tuple(before.shape)} became {after.dtype} {tuple(after.shape)}"
        return
    if before.equal(after):
        return
    gap = (before.double() - after.double()).abs().max().item()
    size = max(before.double().abs().max().item(), SMALL)
    if not gap <= relative * size:
        yield f"{what}: up to {gap:.3g} apart, where the values reach {size:.3g}"
