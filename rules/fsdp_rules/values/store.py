"""The cells in which objects are collected until nothing changes; they only grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable

from fsdp_rules.values.abstract import LASTING, Obj, Objects

Action = Callable[[Obj], None]
#: How many objects a cell has; those that rules ask for are not counted.
MOST = 16
#: How many steps the search takes.
STEPS = 1_000_000


class Lazy:
    """What is looked up when something watches a cell that it would be in: an import, which may read many files."""

    def __init__(self, look_up: Callable[[], object]) -> None:
        self._look_up: Callable[[], object] | None = look_up

    def force(self) -> None:
        """Look it up, once."""
        look_up, self._look_up = self._look_up, None
        if look_up is not None:
            look_up()

    @property
    def is_done(self) -> bool:
        """Whether it was looked up."""
        return self._look_up is None


class Store:
    """Cells are numbers. What is in one is in every cell that an edge leads to, and is shown to those who watch it.

    None goes along the edges, and is shown to nobody.
    """

    def __init__(self) -> None:
        self.objects = Objects()
        self._number = 0
        # Most cells have nothing. Dictionaries keep their order: what is cut must not hang on where objects are in
        # memory.
        self._held: dict[int, dict[Obj, None]] = {}
        self._edges: dict[int, dict[int, None]] = {}
        self._watchers: dict[int, list[Action]] = {}
        self._none: set[int] = set()
        self._none_edges: dict[int, list[int]] = {}
        self._pending: deque[tuple[int, Obj]] = deque()
        self._lazy: dict[int, dict[Lazy, None]] = {}
        self.steps = 0
        #: The cell and its object that are handed on now.
        self.handing: tuple[int, Obj] | None = None

    def cells(self, number: int = 1) -> int:
        """The first of so many new cells."""
        first = self._number
        self._number += number
        return first

    def holding(self, one: Obj) -> int:
        """A new cell that has ``one``."""
        cell = self.cells()
        self.put(cell, one)
        return cell

    def of(self, cell: int) -> Collection[Obj]:
        """What is in a cell so far."""
        return self._held.get(cell, _EMPTY).keys()

    def filled(self) -> Iterable[tuple[int, Collection[Obj]]]:
        """The cells that have something, with what it is."""
        return self._held.items()

    def put(self, cell: int, one: Obj) -> None:
        """``one`` is in ``cell`` as well."""
        if one is self.objects.none:
            if cell not in self._none:
                self._none.add(cell)
                self._pending.append((cell, one))
            return
        held = self._held.get(cell)
        if held is None:
            held = self._held[cell] = {}
        elif one in held:
            return
        elif len(held) >= MOST and one.kind not in LASTING:
            one = self.objects.open
            if one in held:
                return
        held[one] = None
        if cell in self._edges or cell in self._watchers:
            self._pending.append((cell, one))

    def edge(self, source: int, target: int) -> None:
        """What is in ``source`` is in ``target`` as well."""
        if source == target:
            return
        edges = self._edges.setdefault(source, {})
        if target in edges:
            return
        edges[target] = None
        before = self.handing
        for one in tuple(self._held.get(source, ())):
            self.handing = source, one
            self.put(target, one)
        self.handing = before
        if source in self._none:
            self.put(target, self.objects.none)
        for lazy in tuple(self._lazy.get(source, ())):
            self.lazily(target, lazy)

    def may_be_none(self, cell: int) -> bool:
        """Whether None is in a cell so far."""
        return cell in self._none

    def hand_none(self, source: int, target: int) -> None:
        """Where None is in ``source`` it is in ``target`` as well."""
        self._none_edges.setdefault(source, []).append(target)
        if source in self._none:
            self.put(target, self.objects.none)

    def targets(self, cell: int) -> Collection[int]:
        """The cells that an edge leads to from ``cell``."""
        return self._edges.get(cell, {}).keys()

    def watch(self, cell: int, action: Action) -> None:
        """Call ``action`` with each object that is in ``cell``, or comes into it."""
        self._watchers.setdefault(cell, []).append(action)
        for one in tuple(self._held.get(cell, ())):
            action(one)
        self.demand(cell)

    def lazily(self, cell: int, lazy: Lazy) -> None:
        """What ``lazy`` looks up is in ``cell``, and is looked up if that matters to anything."""
        pending = [cell]
        while pending and not lazy.is_done:
            one = pending.pop()
            waiting = self._lazy.setdefault(one, {})
            if lazy not in waiting:
                waiting[lazy] = None
                pending += self._edges.get(one, ())
                if one in self._watchers:
                    lazy.force()

    def demand(self, cell: int) -> None:
        """Look up what ``cell`` may have, and what that leads to in turn."""
        while waiting := self._lazy.pop(cell, None):
            for lazy in waiting:
                lazy.force()

    def demand_all(self, is_enough: Callable[[], bool]) -> None:
        """Look up everything in the order in which it came, until ``is_enough``."""
        while self._lazy and not is_enough():
            self.demand(next(iter(self._lazy)))

    def give_up(self) -> bool:
        """What is not looked up may be anything; whether there is something."""
        left = [cell for cell, waiting in self._lazy.items() if not all(lazy.is_done for lazy in waiting)]
        self._lazy.clear()
        for cell in left:
            self.put(cell, self.objects.open)
        return bool(left)

    def run(self) -> bool:
        """Carry on until nothing changes; False where the search was cut."""
        pending, edges, watchers = self._pending, self._edges, self._watchers
        while pending:
            self.steps += 1
            if self.steps > STEPS:
                return False
            cell, one = self.handing = pending.popleft()
            for target in tuple(edges.get(cell, ())):
                self.put(target, one)
            if one is self.objects.none:
                for target in self._none_edges.get(cell, ()):
                    self.put(target, one)
                continue
            for action in tuple(watchers.get(cell, ())):
                action(one)
        self.handing = None
        return True


_EMPTY: dict[Obj, None] = {}
