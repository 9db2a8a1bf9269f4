"""The cells in which objects are collected until nothing changes; they only grow."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from fsdp_rules.values.abstract import LASTING, Obj, Objects

Action = Callable[[Obj], None]
#: How many objects a cell has; those that rules ask for are not counted.
MOST = 16
#: How many steps the search takes.
STEPS = 1_000_000


class Store:
    """Cells are numbers. What is in one is in every cell that an edge leads to, and is shown to those who watch it.

    None goes along the edges, and is shown to nobody.
    """

    def __init__(self) -> None:
        self.objects = Objects()
        # Dictionaries, since these keep their order: what is cut must not hang on where objects are in memory.
        self._held: list[dict[Obj, None]] = []
        self._edges: list[list[int]] = []
        self._watchers: list[list[Action]] = []
        self._none: set[int] = set()
        self._none_edges: dict[int, list[int]] = {}
        self._pending: deque[tuple[int, Obj]] = deque()
        self.steps = 0

    def cells(self, number: int = 1) -> int:
        """The first of so many new cells."""
        first = len(self._held)
        self._held.extend({} for _ in range(number))
        self._edges.extend([] for _ in range(number))
        self._watchers.extend([] for _ in range(number))
        return first

    def of(self, cell: int) -> Collection[Obj]:
        """What is in a cell so far."""
        return self._held[cell].keys()

    def put(self, cell: int, one: Obj) -> None:
        """``one`` is in ``cell`` as well."""
        if one is self.objects.none:
            if cell not in self._none:
                self._none.add(cell)
                self._pending.append((cell, one))
            return
        held = self._held[cell]
        if one in held:
            return
        if len(held) >= MOST and one.kind not in LASTING:
            one = self.objects.open
            if one in held:
                return
        held[one] = None
        self._pending.append((cell, one))

    def edge(self, source: int, target: int) -> None:
        """What is in ``source`` is in ``target`` as well."""
        if source == target:
            return
        edges = self._edges[source]
        if target in edges:
            return
        edges.append(target)
        for one in tuple(self._held[source]):
            self.put(target, one)
        if source in self._none:
            self.put(target, self.objects.none)

    def may_be_none(self, cell: int) -> bool:
        """Whether None is in a cell so far."""
        return cell in self._none

    def hand_none(self, source: int, target: int) -> None:
        """Where None is in ``source`` it is in ``target`` as well."""
        self._none_edges.setdefault(source, []).append(target)
        if source in self._none:
            self.put(target, self.objects.none)

    def watch(self, cell: int, action: Action) -> None:
        """Call ``action`` with each object that is in ``cell``, or comes into it."""
        self._watchers[cell].append(action)
        for one in tuple(self._held[cell]):
            action(one)

    def run(self) -> bool:
        """Carry on until nothing changes; False where the search was cut."""
        pending, edges, watchers = self._pending, self._edges, self._watchers
        while pending:
            self.steps += 1
            if self.steps > STEPS:
                return False
            cell, one = pending.popleft()
            for target in edges[cell]:
                self.put(target, one)
            if one is self.objects.none:
                for target in self._none_edges.get(cell, ()):
                    self.put(target, one)
                continue
            for action in tuple(watchers[cell]):
                action(one)
        return True
