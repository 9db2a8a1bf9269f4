"""What the turns of several forms of the same work took, as ratios to one of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

#: For each form the seconds of each turn of one rank: by the wall clock, and of the processor.
Turns = Mapping[str, Sequence[tuple[float, float]]]


def to_first(ranks: Sequence[Turns], clock: int) -> dict[str, Any]:
    """Median milliseconds of the slower rank, and the ratio of each form to the first, which took turns with it."""
    first, *others = ranks[0]
    slower = {
        form: [max(turn[clock] for turn in turns) for turns in zip(*(rank[form] for rank in ranks), strict=True)]
        for form in (first, *others)
    }
    ratios = {}
    for form in others:
        found = [ours / theirs for ours, theirs in zip(slower[form], slower[first], strict=True)]
        low, middle, high = (round(value, 3) for value in statistics.quantiles(found, n=4))
        ratios[form] = {"median": middle, "low": low, "high": high}
    return {"ms": {form: round(1000 * statistics.median(found), 2) for form, found in slower.items()}, "ratio": ratios}
