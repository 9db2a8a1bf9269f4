"""What an attribute of an object of which nothing is known may be: what others of the program have by its name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from fsdp_rules.ir.operations import Body, GetAttribute
from fsdp_rules.values.abstract import LASTING, Kind, Obj
from fsdp_rules.values.frames import Class
from fsdp_rules.values.machine import Machine

#: What a program gives a library with its own models in it.
_OF_PROGRAM = LASTING | {Kind.INSTANCE, Kind.CONTAINER}
_MODELS = frozenset({Kind.MODEL, Kind.OTHER_WRAPPER})


class ByName:
    """Weak evidence: a reader also keeps that the object is unknown, so no answer is sure by a name alone.

    ``may_share`` says whether some program runs both of two files.
    """

    def __init__(self, machine: Machine, may_share: Callable[[str, str], bool]) -> None:
        self._machine = machine
        self._store = machine.store
        self._may_share = may_share
        self._written: dict[str, dict[str, int]] = defaultdict(dict)
        self._read: dict[str, dict[str, int]] = defaultdict(dict)
        self._unknown: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self._own: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self._classes: dict[str, list[Class]] = defaultdict(list)
        self._called: dict[str, list[tuple[Obj, int]]] = defaultdict(list)
        #: The cells of attributes of unknown objects, with their names.
        self._asked: dict[int, str] = {}
        self._results: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self._wanted: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self._loaded: dict[Obj, tuple[int, ...]] = {}

    def load(self, made: Obj, given: tuple[int, ...]) -> None:
        """A class of a library loads ``made`` from files, and is ``given`` the cells."""
        self._loaded[made] = given

    def read_of(self, owner: Obj, path: str, name: str, to: int) -> None:
        """``to`` is the attribute ``name`` of the unknown ``owner``, in the file at ``path``.

        What a library loads from files has nothing of the program but what it is given.
        """
        if owner not in self._loaded:
            self.read(path, name, to)
        for cell in self._loaded.get(owner, ()):
            self._store.watch(cell, lambda one: self.read(path, name, to) if one.kind in _OF_PROGRAM else None)

    def write(self, path: str, name: str, value: int) -> None:
        """Some object gets ``value`` as its attribute ``name`` in the file at ``path``."""
        written = self._written[name]
        if path not in written:
            written[path] = self._store.cells()
            for reader, to in self._read[name].items():
                self._join(path, written[path], reader, to)
        cell = written[path]
        self._store.watch(value, lambda one: self._store.put(cell, one) if one.kind in LASTING else None)

    def read(self, path: str, name: str, to: int) -> None:
        """``to`` is the attribute ``name`` of an unknown object in the file at ``path``."""
        self._asked[to] = name
        read = self._read[name]
        if path not in read:
            read[path] = self._store.cells()
            for writer, cell in self._written[name].items():
                self._join(writer, cell, path, read[path])
        self._store.edge(read[path], to)

    def readers(self) -> dict[int, str]:
        """The cells of what an attribute may be by its name alone, with the name."""
        return {cell: name for name, cells in self._read.items() for cell in cells.values()}

    def models(self) -> dict[str, frozenset[str]]:
        """The attributes as which some object has a model, each with the files that write it."""
        found = {
            name: frozenset(
                path for path, cell in written.items() if any(one.kind is Kind.MODEL for one in self._store.of(cell))
            )
            for name, written in self._written.items()
        }
        return {name: paths for name, paths in found.items() if paths}

    def reads_model(self, path: str, body: Body) -> bool:
        """Whether ``body``, in the file at ``path``, reads an attribute as which some object has a model."""
        names = {one.name for one in body.every(GetAttribute)}.intersection(self._written)
        written = (pair for name in names for pair in self._written[name].items())
        return any(
            self._may_share(writer, path) and any(one.kind is Kind.MODEL for one in self._store.of(cell))
            for writer, cell in written
        )

    def write_unknown(self, path: str, name: str, value: int) -> None:
        """An object of which nothing is known, and which may be of any class, gets ``value`` as its ``name``."""
        self._unknown[name].append((path, value))
        for reader, to in self._own[name]:
            self._give(path, value, reader, to)

    def read_own(self, path: str, name: str, to: int) -> None:
        """``to`` is the attribute ``name`` of some object of a class, in a method that nothing of the tree calls."""
        self._own[name].append((path, to))
        for writer, value in self._unknown[name]:
            self._give(writer, value, path, to)

    def call(self, path: str, of: int, to: int) -> None:
        """``to`` is what a call of the unknown ``of`` gives in the file at ``path``."""
        if (name := self._asked.get(of)) is not None:
            self._wanted[name].append((path, to))
            for writer, value in self._results[name]:
                self._give(writer, value, path, to, _MODELS)

    def result(self, path: str, name: str, value: int) -> None:
        """The method ``name`` of a class in the file at ``path`` returns ``value``."""
        self._results[name].append((path, value))
        for reader, to in self._wanted[name]:
            self._give(path, value, reader, to, _MODELS)

    def _give(self, writer: str, value: int, reader: str, to: int, kinds: frozenset[Kind] = LASTING) -> None:
        def give(one: Obj) -> None:
            if one.kind in kinds:
                self._store.put(to, one)
                self._store.put(to, self._machine.objects.open)

        if self._may_share(writer, reader):
            self._store.watch(value, give)

    def define(self, cls: Class) -> None:
        """A class of the tree, which may be that of a module if it extends anything."""
        for name in cls.body.bound if cls.bases else ():
            self._classes[name].append(cls)
            for part, to in self._called[name]:
                self._method(cls, name, part, to)

    def method(self, part: Obj, name: str, to: int) -> None:
        """``to`` is the method ``name`` of ``part``, a sharded module of a class that is not known."""
        self._called[name].append((part, to))
        for cls in self._classes[name]:
            self._method(cls, name, part, to)

    def _method(self, cls: Class, name: str, part: Obj, to: int) -> None:
        if part.since is None or not self._may_share(cls.body.path, part.since.path):
            return
        objects = self._machine.objects

        def bind(one: Obj) -> None:
            if one.kind is Kind.FUNCTION:
                self._store.put(to, objects.get(Kind.BOUND, (part, one)))

        self._store.watch(self._machine.scopes.cell(cls.frame, name), bind)

    def _join(self, writer: str, written: int, reader: str, read: int) -> None:
        if self._may_share(writer, reader):
            self._store.edge(written, read)
