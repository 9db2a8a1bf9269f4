"""Elements of containers: by a key that is known, by any other, and all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator

from fsdp_rules.fsdp1.names import CONFIG_NAMES, canonical
from fsdp_rules.ir.operations import ANY
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.machine import Machine
from fsdp_rules.values.module_members import STATES


class Items:
    """Reads and writes of ``x[key]``. A container is the join of all its writes."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._store = machine.store
        self._cells: dict[tuple[Obj, Hashable], int] = {}
        self._keys: dict[Obj, list[Hashable]] = {}
        #: The containers whose elements are under keys, so that a loop over one gives these.
        self.dictionaries: set[Obj] = set()
        self._names: dict[Obj, int] = {}
        #: Those of ``**`` parameters whose callers give some of it as ``**``, too, or are not known.
        self.handed_on: set[Obj] = set()
        #: Those that are modules themselves.
        self.modules: set[Obj] = set()
        self._into: dict[Obj, list[Obj]] = {}
        #: What is done where nothing comes to be known of a key.
        self._waiting: list[tuple[int, Callable[[], None]]] = []

    def cell(self, owner: Obj, key: Hashable) -> int:
        """The cell of the element under a key; of :data:`ANY`, what is written under keys that are not known."""
        known = self._cells.get((owner, key))
        if known is None:
            known = self._cells[owner, key] = self._store.cells()
            if key is not _ALL:
                self._keys.setdefault(owner, []).append(key)
                self._store.edge(known, self.all(owner))
                for into in tuple(self._into.get(owner, ())):
                    self._store.edge(known, self.cell(into, key))
        return known

    def cells(self) -> Iterator[tuple[Obj, int]]:
        """The cells of all elements, with the containers that these are of."""
        return ((owner, cell) for (owner, _), cell in self._cells.items())

    def later(self, cell: int, action: Callable[[], None]) -> None:
        """Call ``action`` where nothing comes to be known of ``cell``."""
        self._store.demand(cell)
        self._waiting.append((cell, action))

    def settle(self) -> None:
        """Take the keys of which nothing is known for any."""
        waiting, self._waiting = self._waiting, []
        for key, action in waiting:
            if not self._store.of(key):
                action()

    def names(self, owner: Obj) -> int:
        """The cell of the keys that are names of parameters or modules."""
        if owner not in self._names:
            self._names[owner] = self._store.cells()
        return self._names[owner]

    def all(self, owner: Obj) -> int:
        """The cell of all elements."""
        return self.cell(owner, _ALL)

    def keys(self, owner: Obj) -> list[Hashable]:
        """The keys under which something is read or written."""
        return self._keys.get(owner, [])

    def is_empty(self, owner: Obj) -> bool:
        """Whether nothing is written to ``owner`` or read of it under a key."""
        return not self._keys.get(owner)

    def unpack(self, given: Obj, into: Obj) -> None:
        """The elements of ``given``, with their keys, are among those of ``into``."""
        if given.kind is Kind.CONTAINER:
            if given is into or into in self._into.setdefault(given, []):
                return
            self._into[given].append(into)
            for key in tuple(self._keys.get(given, ())):
                self._store.edge(self.cell(given, key), self.cell(into, key if isinstance(key, str) else ANY))
            if given in self.dictionaries:
                self._store.edge(self.names(given), self.names(into))
        else:
            self.of(given, None, self.cell(into, ANY))

    def read(self, of: int, key: int | None, to: int) -> None:
        """``to`` is ``of[key]``; without a key, a slice."""
        if key is None:
            self._store.watch(of, lambda owner: self._sliced(owner, to))
            return

        def by_owner(owner: Obj) -> None:
            self._store.watch(key, lambda one: self.of(owner, one, to))
            self.later(key, lambda: self.of(owner, None, to))

        self._store.watch(of, by_owner)

    def write(self, of: int, key: int | None, value: int) -> None:
        """``of[key] = value``."""

        def by_owner(owner: Obj) -> None:
            if key is None:
                self.put(owner, None, value)
            else:
                self._store.watch(key, lambda one: self.put(owner, one, value))
                self._waiting.append((key, lambda: self.put(owner, None, value)))

        self._store.watch(of, by_owner)

    def put(self, owner: Obj, key: Obj | None, value: int) -> None:
        """``owner[key] = value`` of one object."""
        known = key.data if key is not None and key.kind is Kind.CONSTANT else None
        if owner.kind is Kind.ATTRIBUTES:
            self._machine.attributes.save(owner.data, known if isinstance(known, str) else ANY, value)
        elif owner.kind is Kind.INSTANCE:
            self._store.edge(value, self.all(owner))
            self._machine.calls.method(owner, "__setitem__", (self._store.cells(), value), self._store.cells())
        elif owner.kind in (Kind.CONTAINER, Kind.EXTERN) or owner.is_itself:
            if key is not None and key.kind is Kind.NAME:
                self._store.put(self.names(owner), key)
            self._store.edge(value, self.cell(owner, ANY if known is None else known))

    def elements(self, of: int, to: int) -> None:
        """``to`` is what a loop over ``of`` gives."""
        self._store.watch(of, lambda owner: self._iterated(owner, to))

    def _iterated(self, owner: Obj, to: int) -> None:
        if owner.kind is Kind.INSTANCE:
            made = self._store.cells()
            self._machine.calls.method(owner, "__iter__", (), made)
            self._store.watch(made, lambda one: self.of(one, None, to) if one is not owner else None)
            self._machine.calls.method(owner, "__next__", (), to)
        if owner in self.dictionaries:
            self._store.edge(self.names(owner), to)
        else:
            self.of(owner, None, to)

    def entered(self, of: int, to: int) -> None:
        """``to`` is what ``with of as to`` gives."""

        def enter(owner: Obj) -> None:
            if owner.kind is Kind.CONTAINER:
                self._store.edge(self.all(owner), to)
            elif owner.kind is Kind.INSTANCE:
                self._machine.calls.method(owner, "__enter__", (), to)
            else:
                self._store.put(to, owner)

        self._store.watch(of, enter)

    def _sliced(self, owner: Obj, to: int) -> None:
        if owner.kind in (Kind.CONTAINER, Kind.PARAMETER, Kind.GRADIENT, Kind.NUMBER, Kind.OPEN, Kind.PART):
            self._store.put(to, owner)

    def of(self, owner: Obj, key: Obj | None, to: int) -> None:
        """``to`` is the element of one object under a key, or under any."""
        kind = owner.kind
        known = key.data if key is not None and key.kind is Kind.CONSTANT else None
        if owner.is_itself:
            self._store.put(to, self._machine.objects.open)
        if kind is Kind.CONTAINER or owner.is_itself:
            if known is None:
                self._store.edge(self.all(owner), to)
            else:
                self._store.edge(self.cell(owner, known), to)
                self._store.edge(self.cell(owner, ANY), to)
                if isinstance(known, int) and known < 0:
                    self._store.edge(self.all(owner), to)
        elif kind is Kind.ATTRIBUTES:
            if isinstance(known, str):
                self._machine.attributes.load(owner.data, known, to)
            else:
                self._machine.attributes.every(owner.data, to)
        elif kind is Kind.INSTANCE:
            self._store.edge(self.all(owner), to)
            if isinstance(known, int):
                self._store.edge(self.cell(owner, known), to)
            if key is not None:
                self._machine.calls.method(owner, "__getitem__", (self._store.holding(key),), to)
        elif kind in (Kind.PARAMETER, Kind.GRADIENT, Kind.NUMBER, Kind.PART, Kind.LOADED, Kind.GROUP):
            self._store.put(to, owner)
        elif kind is Kind.EXTERN and owner.data == "sys.modules" and isinstance(known, str):
            self._store.put(to, self._machine.modules.named("", known))
        elif kind is Kind.EXTERN and canonical(owner.data) in CONFIG_NAMES:
            # A member of an enumeration by its name.
            member = self._machine.objects.extern(f"{owner.data}.{known}") if isinstance(known, str) else None
            self._store.put(to, member or self._machine.objects.open)
        elif kind in (Kind.OPEN, Kind.METHOD):
            self._store.put(to, self._machine.objects.open)
        if kind in (Kind.OPEN, Kind.METHOD) and known in STATES:
            self._store.put(to, self._machine.objects.of_model(Kind.PARAMETER, None))


class _All:
    """The key of all elements."""


_ALL = _All()
