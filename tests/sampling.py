"""Which cases of a matrix run each time: the others are marked ``whole``, for ``make test-all``, or ``long``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


def tiers(values: Iterable[Value], each: int, rest: int) -> list[Value | ParameterSet]:
    """``values``, of which each ``each``-th runs in every run and, counted anew, each ``rest``-th under ``test-all``.

    The others are ``long``: a matrix whose own command runs all of it.
    """
    marks = (pytest.mark.long, pytest.mark.whole)
    return [
        value if not number % each else pytest.param(value, marks=marks[not number % rest])
        for number, value in enumerate(values)
    ]


def in_turn(rows: Iterable[Any], columns: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...] | ParameterSet]:
    """Each of ``rows`` with each of ``columns``, of which one, in turn, runs in every run and the next in ``test-all``.

    The others are ``long``.
    """
    return [
        case if turn == 0 else pytest.param(*case, marks=pytest.mark.whole if turn == 1 else pytest.mark.long)
        for number, row in enumerate(rows)
        for place, column in enumerate(columns)
        for case, turn in [((row, *column), (place - number) % len(columns))]
    ]


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
