"""Which cases of a matrix run each time: the others are marked ``whole``, for ``make test-all``, or ``long``."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from typing import Any, TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

Value = TypeVar("Value")


def every(
    step: int, values: Iterable[Value], mark: pytest.MarkDecorator = pytest.mark.whole
) -> list[Value | ParameterSet]:
    """``values``, of which each ``step``-th runs in every run; the others have ``mark``."""
    return [value if not number % step else pytest.param(value, marks=mark) for number, value in enumerate(values)]


def pairwise(cases: Iterable[tuple[object, ...]]) -> list[tuple[object, ...] | ParameterSet]:
    """``cases``, of which so many run in every run that each pair of values in one of them stands in one that runs."""
    left = [(case, set(combinations(enumerate(case), 2))) for case in cases]
    order, kept, shown = [case for case, _ in left], [], set[Any]()
    while left:
        case, pairs = max(left, key=lambda entry: len(entry[1] - shown))
        if pairs <= shown:
            break
        kept.append(case)
        shown |= pairs
    return [case if case in kept else pytest.param(*case, marks=pytest.mark.whole) for case in order]
