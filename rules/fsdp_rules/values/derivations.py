"""Why an expression may be what it is: the expressions that hand an object on, from where it is made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from fsdp_rules.values.abstract import LASTING, Kind, Obj
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.positions import text_at
from fsdp_rules.values.store import Action, Store

#: What a cell has, and an object in it.
_Held = tuple[int, Obj]
#: What steps are shown for.
_SHOWN = LASTING | {Kind.CONTAINER}


class Step(NamedTuple):
    """An expression that an object comes through: its file, line and text, and ``kind``, what the object is there.

    ``by_name`` is the attribute by whose name alone the object comes there, "" where the code hands it on.
    """

    path: str
    line: int
    text: str
    kind: Kind
    by_name: str = ""


class Derived(NamedTuple):
    """An expression, one thing that it may be, and the way of that from where it is made; the last is itself."""

    text: str
    kind: Kind
    steps: tuple[Step, ...]


class ReasonedStore(Store):
    """A store that keeps what put each object where it is first."""

    def __init__(self) -> None:
        super().__init__()
        self.reasons: dict[_Held, _Held | None] = {}

    def put(self, cell: int, one: Obj) -> None:
        """As a store does it."""
        self.reasons.setdefault((cell, one), self.handing)
        super().put(cell, one)

    def watch(self, cell: int, action: Action) -> None:
        """As a store does it."""
        super().watch(cell, partial(self._because, cell, action))

    def _because(self, cell: int, action: Action, one: Obj) -> None:
        before, self.handing = self.handing, (cell, one)
        try:
            action(one)
        finally:
            self.handing = before


class Derivations:
    """Those of the expressions that begin on one line of a file."""

    def __init__(self, path: str, line: int) -> None:
        self._path = path
        self._line = line
        self._store = ReasonedStore()
        self.found: list[Derived] = []
        #: Whether the analysis has read the file.
        self.is_read = False

    def start(self) -> Store:
        """A new store to run on."""
        self._store = ReasonedStore()
        return self._store

    def note(self, machine: Interpreter, lines: Mapping[str, list[bytes]]) -> None:
        """Take them from ``machine``, which has run on the store of :meth:`start`; ``lines`` are those of each file."""
        places: dict[int, tuple[str, int, str]] = {}
        every: dict[tuple[str, Kind], list[tuple[Step, ...]]] = defaultdict(list)
        names = machine.by_name.readers()
        self.is_read = any(frame.body.path == self._path for frame in machine.frames)
        uses = [(frame, at, value) for frame in machine.frames for at, value in frame.body.uses]
        # A value has the place where it is made, which comes before those where a name of it is read.
        for frame, at, value in sorted(uses, key=lambda use: (use[1].line, -use[1].end_line, -use[1].end_column)):
            text = text_at(at, lines[frame.body.path])
            places.setdefault(frame.base + value, (frame.body.path, at.line, text))
        for frame, at, value in uses:
            if (frame.body.path, at.line) == (self._path, self._line):
                for one in self._store.of(frame.base + value):
                    if one.kind in LASTING:
                        text = text_at(at, lines[self._path])
                        here = Step(self._path, self._line, text, one.kind)
                        steps = self._steps((frame.base + value, one), places, names)
                        every[text, one.kind].append(steps if steps[-1:] == (here,) else (*steps, here))
        self.found = [Derived(*what, min(ways, key=len)) for what, ways in every.items()]

    def _steps(
        self, held: _Held | None, places: Mapping[int, tuple[str, int, str]], names: Mapping[int, str]
    ) -> tuple[Step, ...]:
        """The way to ``held``, without what stands twice."""
        back: list[Step] = []
        name = ""
        seen: set[_Held] = set()
        while held is not None and held not in seen:
            seen.add(held)
            cell, one = held
            if cell in places and one.kind in _SHOWN:
                step = Step(*places[cell], one.kind)
                if back and name:
                    back[-1] = back[-1]._replace(by_name=name)
                if not back or back[-1][:4] != step[:4]:
                    back.append(step)
                name = ""
            name = names.get(cell, name)
            held = self._store.reasons.get(held)
        return tuple(reversed(back))
