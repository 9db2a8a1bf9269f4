"""The smallest set of edits whose other form makes two runs equal; nothing here starts a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

#: Whether the runs are equal with these edits in their other form; None where these forms did not run together.
Holds = Callable[[frozenset[str]], bool | None]

#: So many suspects are asked about one by one: forms that do not fit each other must not hide the right one.
_ALONE = 2


@dataclass(frozen=True)
class Search:
    """What came of it: ``edits`` is None where no set was found, ``is_smallest`` where nothing of it can be left out.

    ``runs``: how often it was asked.
    """

    edits: frozenset[str] | None
    runs: int
    is_smallest: bool = True


def most_runs(edits: int) -> int:
    """So many runs a search makes at most."""
    return int(2 * math.log2(max(edits, 1))) + 4


def smallest(edits: Sequence[str], holds: Holds, suspects: Sequence[str] = ()) -> Search:
    """Look for it among ``edits``, none of which makes the runs equal as it is; ``suspects`` are asked about first.

    One edit is found in two runs for each halving at most, and those for suspects. Several that need each other are
    found as well, if fewer than :func:`most_runs` are enough.
    """
    asked = _Asked(holds, most_runs(len(edits)))
    try:
        for part in _parts(edits, suspects):
            if held := asked(part):
                found = _without_needless(_narrowed(part, (), asked), asked)
                return Search(frozenset(found), asked.runs)
            if held is False and len(part) == len(edits):
                break
        return Search(None, asked.runs)
    except _Spent:
        return Search(asked.least, asked.runs, is_smallest=False)


class _Spent(Exception):
    """There are no runs left."""


class _Asked:
    """Asks, and knows the answers; ``least`` is the smallest set that held."""

    def __init__(self, holds: Holds, most: int) -> None:
        self._holds, self._most = holds, most
        self._answers: dict[frozenset[str], bool | None] = {}
        self.least: frozenset[str] | None = None

    @property
    def runs(self) -> int:
        return len(self._answers)

    def __call__(self, edits: Sequence[str]) -> bool | None:
        asked = frozenset(edits)
        if asked not in self._answers:
            if self.runs >= self._most:
                raise _Spent
            held = self._answers[asked] = self._holds(asked)
            if held and (self.least is None or len(asked) < len(self.least)):
                self.least = asked
        return self._answers[asked]


def _parts(edits: Sequence[str], suspects: Sequence[str]) -> Iterator[Sequence[str]]:
    """What is asked until something holds: the suspects, halves, all.

    Where all of them did not run together, ever smaller parts, without the form that does not fit.
    """
    if len(suspects) > _ALONE:
        yield suspects
    else:
        yield from ([suspect] for suspect in suspects)
    edits = [*suspects, *(edit for edit in edits if edit not in suspects)]
    yield from _cut(edits, 2)
    if edits:
        yield edits
    pieces = 4
    while pieces < 2 * len(edits):
        yield from _cut(edits, pieces)
        pieces *= 2


def _cut(edits: Sequence[str], pieces: int) -> Iterator[Sequence[str]]:
    size = max(-(-len(edits) // pieces), 1)
    yield from (edits[start : start + size] for start in range(0, len(edits), size))


def _narrowed(edits: Sequence[str], beside: Sequence[str], asked: _Asked) -> Sequence[str]:
    """What of ``edits`` is needed, where ``beside`` alone does not hold and both together do."""
    if len(edits) == 1:
        return edits
    one, two = _cut(edits, 2)
    for half in (one, two):
        if asked([*half, *beside]):
            return _narrowed(half, beside, asked)
    first = _narrowed(one, [*two, *beside], asked)
    if asked([*first, *beside]):
        return first
    return [*first, *_narrowed(two, [*first, *beside], asked)]


def _without_needless(edits: Sequence[str], asked: _Asked) -> Sequence[str]:
    """What of ``edits`` cannot be left out: a part may not have held only since its forms did not run together."""
    if len(edits) == 1:
        return edits
    for edit in edits:
        rest = [other for other in edits if other != edit]
        if asked(rest):
            return _without_needless(rest, asked)
    return edits
