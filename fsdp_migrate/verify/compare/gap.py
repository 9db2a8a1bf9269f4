"""How far two recorded tensors are apart."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fsdp_migrate.verify.recording.value import Copies, Value, ulps_between


@dataclass(frozen=True)
class Gap:
    """Two tensors that differ.

    ``relative``: the greatest difference that is known, over the greatest magnitude; infinite where the two cannot be
    subtracted. ``ulps``: the greatest among the sampled elements; None for tensors of different dtypes, and where
    no sampled element differs. ``ratio``: after over before, where it is the same for all sampled elements.
    """

    relative: float
    ulps: int | None
    ratio: float | None
    before: str
    after: str


def gap(before: Value | None, after: Value | None) -> Gap | None:
    """None if both are the same bit for bit, or both are missing."""
    if before is None or after is None:
        return None if before is after else Gap(math.inf, None, None, describe(before), describe(after))
    if before.same_bits(after):
        return None
    if before.numel != after.numel:
        return Gap(math.inf, None, None, f"{before.numel} elements", f"{after.numel} elements")
    if before.nonfinite != after.nonfinite:
        return Gap(math.inf, None, None, describe(before), describe(after))
    return Gap(_relative(before, after), _ulps(before, after), _ratio(before, after), describe(before), describe(after))


def copies_gap(before: Copies, after: Copies) -> Gap | None:
    """As :func:`gap`, copy by copy; with different numbers of copies each is compared with the other side's first."""
    if len(before) == len(after):
        pairs = list(zip(before, after, strict=True))
    else:
        pairs = [*((copy, after[0]) for copy in before), *((before[0], copy) for copy in after[1:])]
    gaps = [found for pair in pairs if (found := gap(*pair)) is not None]
    return max(gaps, key=lambda found: found.relative, default=None)


def state_gap(before: object, after: object) -> Gap | None:
    """As :func:`copies_gap`, for what an optimizer keeps, which may be a number: of Python, or a tensor of one."""
    one, two = _number(before), _number(after)
    if isinstance(one, tuple) and isinstance(two, tuple):
        return copies_gap(one, two)
    if one == two:
        return None
    texts = [describe(side[0]) if isinstance(side, tuple) else repr(side) for side in (one, two)]
    return Gap(_apart(one, two), None, None, *texts)


def _number(value: object) -> object:
    if isinstance(value, tuple) and len(value) == 1 and value[0] is not None and value[0].scalar is not None:
        return value[0].scalar
    return value


def _apart(one: object, two: object) -> float:
    """Of two tensors of one element; counts, which are whole numbers, have no rounding."""
    if not (isinstance(one, float) and isinstance(two, float) and math.isfinite(one) and math.isfinite(two)):
        return math.inf
    if one.is_integer() and two.is_integer():
        return math.inf
    return abs(one - two) / max(abs(one), abs(two))


def agree(copies: Copies) -> bool:
    """Whether all replicas of one tensor are the same bit for bit."""
    return all(gap(copies[0], other) is None for other in copies[1:])


def describe(value: Value | None) -> str:
    if value is None:
        return "None"
    if value.nonfinite:
        return f"{value.nonfinite} of {value.numel} elements not finite"
    if value.is_zero:
        return "zeros"
    if value.scalar is not None:
        return f"{value.scalar!r}"
    return f"{value.dtype}, norm {value.l2:.9g}"


def _relative(before: Value, after: Value) -> float:
    first, second = before.numbers(), after.numbers()
    scale = max(before.greatest, after.greatest)
    length = max(before.l2, after.l2)
    by_samples = max((abs(first[k] - second[k]) for k in first.keys() & second.keys()), default=0.0)
    # Elements between the samples show in the sum: of rounding it moves by about the root of their number.
    moved = abs(before.total - after.total)
    most = max(scale * math.sqrt(max(before.numel, 1)), abs(before.total), abs(after.total))
    found = [
        by_samples / scale if scale else 0.0,
        abs(before.greatest - after.greatest) / scale if scale else 0.0,
        abs(before.l2 - after.l2) / length if length else 0.0,
        moved / most if most else 0.0,
    ]
    finite = [number for number in found if math.isfinite(number)]
    # Bits that differ where no sampled number does differ by less than can be told: at least by rounding.
    return max(finite, default=math.inf) or 2.0**-53


def _ulps(before: Value, after: Value) -> int | None:
    if before.dtype != after.dtype:
        return None
    common = before.samples.keys() & after.samples.keys()
    found = [ulps_between(before.samples[k], after.samples[k], before.dtype) for k in common]
    return max((number for number in found if number), default=None)


def _ratio(before: Value, after: Value) -> float | None:
    first, second = before.numbers(), after.numbers()
    if not before.l2 or not math.isfinite(before.l2 + after.l2):
        return None
    ratio = after.l2 / before.l2
    close = all(
        math.isclose(second[k], first[k] * ratio, rel_tol=1e-4, abs_tol=1e-5 * before.greatest)
        for k in first.keys() & second.keys()
    )
    return ratio if close else None
