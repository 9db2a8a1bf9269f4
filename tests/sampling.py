"""Which cases of a matrix run each time: the others are marked ``whole``, which ``make test-all`` runs too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import pytest
from _pytest.mark.structures import ParameterSet

Value = TypeVar("Value")


def every(step: int, values: Iterable[Value]) -> list[Value | ParameterSet]:
    """``values``, of which each ``step``-th runs in every run."""
    return [
        value if not number % step else pytest.param(value, marks=pytest.mark.whole)
        for number, value in enumerate(values)
    ]
