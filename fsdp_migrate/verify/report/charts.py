"""Lines, a map and bars as SVG, drawn by a template from plain numbers; colours come from the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 12, 12, 28


@dataclass(frozen=True)
class Line:
    """One curve: ``points`` as SVG wants them, in user units; ``kind`` is its class in the style."""

    kind: str
    points: str


@dataclass(frozen=True)
class Tick:
    """A mark on an axis, at ``at`` user units."""

    at: float
    label: str


@dataclass(frozen=True)
class Chart:
    """Curves over the steps."""

    title: str
    lines: tuple[Line, ...]
    xticks: tuple[Tick, ...]
    yticks: tuple[Tick, ...]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    bottom: int = HEIGHT - _BOTTOM


def chart(title: str, curves: dict[str, Sequence[tuple[int, float]]]) -> Chart | None:
    """Curves of finite values over steps in one frame; None where there is nothing to draw."""
    finite = {kind: [(x, y) for x, y in curve if math.isfinite(y)] for kind, curve in curves.items()}
    every = [point for curve in finite.values() for point in curve]
    if not every:
        return None
    low, high = min(y for _, y in every), max(y for _, y in every)
    if low == high:
        margin = abs(low) / 10 or 1.0
        low, high = low - margin, high + margin
    first, last = min(x for x, _ in every), max(x for x, _ in every)
    span = max(last - first, 1)

    def across(x: float) -> float:
        return round(_LEFT + (x - first) / span * (WIDTH - _LEFT - _RIGHT), 2)

    def down(y: float) -> float:
        return round(_TOP + (high - y) / (high - low) * (HEIGHT - _TOP - _BOTTOM), 2)

    lines = tuple(Line(kind, " ".join(f"{across(x)},{down(y)}" for x, y in curve)) for kind, curve in finite.items())
    steps = sorted({first + round(span * part / 4) for part in range(5)} & set(range(first, last + 1)))
    levels = [low + (high - low) * part / 3 for part in range(4)]
    return Chart(
        title,
        lines,
        tuple(Tick(across(step), str(step)) for step in steps),
        tuple(Tick(down(level), f"{level:.4g}") for level in levels),
    )


@dataclass(frozen=True)
class Cell:
    """One value of one step: ``level`` from 0 (equal) to 6 (not comparable), and what it is in words."""

    x: int
    y: int
    level: int
    text: str


@dataclass(frozen=True)
class Map:
    """Parameters by steps."""

    cells: tuple[Cell, ...]
    names: tuple[str, ...]
    steps: int
    size: int = 14


def level(relative: float) -> int:
    """0 for equal, 1 up to 1e-7, then one more for each two decades, 6 where numbers cannot be subtracted."""
    if relative == 0:
        return 0
    if not math.isfinite(relative):
        return 6
    return min(5, 1 + max(0, math.ceil((math.log10(relative) + 7) / 2)))


@dataclass(frozen=True)
class Bar:
    """``share`` of the longest bar, from 0 to 1."""

    label: str
    kind: str
    share: float
    text: str
