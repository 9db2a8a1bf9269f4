"""The modules of a tree, run when something of them is read, and the scopes that names are found in."""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property

from fsdp_rules.ir.lowering import lowered
from fsdp_rules.ir.operations import Text, names_read
from fsdp_rules.project.places import module_name
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.machine import Machine
from fsdp_rules.values.running import run_body
from fsdp_rules.values.store import Lazy

_BUILTINS = frozenset(dir(builtins))
#: How many bytes of modules are read; those that are needed for an answer come first.
MOST = 3_000_000
#: What a name that is computed hardly means.
_NO_MEMBERS = frozenset({Kind.MODULE, Kind.EXTERN, Kind.CONSTANT, Kind.OPEN})


class Modules:
    """``sources`` are the bytes of the files that may be read, by path."""

    def __init__(self, machine: Machine, sources: Mapping[str, bytes]) -> None:
        self._machine = machine
        self._sources = sources
        self.frames: dict[str, Frame | None] = {}
        self._size = 0
        #: The names that functions, methods and classes of the files read: of variables, attributes and imports.
        self.read: set[str] = set()
        self._whole: set[tuple[Obj, int]] = set()
        self._paths: dict[str, list[str]] = defaultdict(list)
        for path in sources:
            parts = module_name(path).split(".")
            for place in range(len(parts)):
                self._paths[".".join(parts[place:])].append(path)

    def run(self, path: str) -> Frame | None:
        """The frame of the file at ``path``, which runs once; None where it does not parse."""
        if path not in self.frames:
            self.frames[path] = None
            self._size += len(self._sources[path])
            try:
                body = lowered(ast.parse(self._sources[path]), path)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return None
            self.read |= names_read(body)
            frame = self.frames[path] = self._machine.frame(body, None)
            run_body(self._machine, frame)
            for star in body.stars:
                self._run_later(self.starred(frame, star))
        return self.frames[path]

    def _give(self, module: Obj, to: int) -> None:
        """``to`` is ``module``, which is imported."""
        self._machine.store.put(to, module)
        self._run_later(module)

    def _run_later(self, module: Obj) -> None:
        """Run what is imported for what it does, as filling a registry, when nothing else is left to look up."""
        path = module.data[0] if module.kind is Kind.MODULE else ""
        if path and path not in self.frames:
            store = self._machine.store
            store.lazily(store.cells(), Lazy(lambda: self.run(path)))

    @property
    def unparsed(self) -> frozenset[str]:
        """The files that were to be run and do not parse: what they do with what they are given is not known."""
        return frozenset(path for path, frame in self.frames.items() if frame is None)

    @property
    def is_full(self) -> bool:
        """Whether as much was read as is read where nothing asks for more."""
        return self._size > MOST

    def load(self, path: str, module: str, name: str | None, to: int) -> None:
        """``to`` is what an import in the file at ``path`` gives."""
        found = self.named(path, self._absolute(path, module))
        if name is None:
            self._give(found, to)
        elif found.kind is Kind.MODULE and found.data[0] == path and self._find(path, f"{found.data[1]}.{name}"):
            # A package that imports a module of its own.
            self._give(self.named(path, f"{found.data[1]}.{name}"), to)
        elif found.kind is Kind.MODULE:
            self._machine.store.lazily(to, Lazy(lambda: self._machine.attributes.load(found, name, to)))
        else:
            self._machine.attributes.load(found, name, to)

    def some(self, path: str, text: Text, to: int) -> None:
        """``to`` is any module of the tree that may be called ``text`` in the file at ``path``."""
        for dotted in sorted(one for one in self._paths if text.beginning and text.may_be(one)):
            self._machine.store.put(to, self.named(path, dotted))

    def member(self, module: Obj, name: str, to: int) -> None:
        """``to`` is the name of a module of the tree."""
        path, dotted = module.data
        frame = self.run(path) if path else None
        inner = f"{dotted}.{name}"
        if frame is not None and name in frame.body.bound:
            self._machine.store.edge(self._machine.scopes.cell(frame, name), to)
        elif self._find(path, inner) is not None or frame is None:
            self._give(self.named(path, inner), to)
        else:
            self._machine.scopes.from_stars(frame, name, to)

    def members(self, module: Obj, to: int) -> None:
        """``to`` is any class, function or object of a module of the tree."""
        path, _ = module.data
        frame = self.run(path) if path else None
        if frame is None or (module, to) in self._whole:
            return
        self._whole.add((module, to))
        store = self._machine.store
        for name in sorted(frame.body.bound):
            cell = self._machine.scopes.cell(frame, name)
            store.watch(cell, lambda one: store.put(to, one) if one.kind not in _NO_MEMBERS else None)
        for star in frame.body.stars:
            self._machine.attributes.every(self.starred(frame, star), to)

    def starred(self, frame: Frame, module: str) -> Obj:
        """The module of which ``frame`` imports all names."""
        return self.named(frame.body.path, self._absolute(frame.body.path, module))

    def named(self, near: str, dotted: str) -> Obj:
        """The module of a dotted name, as the file at ``near`` imports it."""
        objects = self._machine.objects
        path = self._find(near, dotted)
        if path is not None:
            return objects.get(Kind.MODULE, (path, dotted))
        inside = any(one.startswith(f"{dotted}.") for one in self._packages.get(dotted.partition(".")[0], ()))
        return objects.get(Kind.MODULE, ("", dotted)) if inside else objects.extern(dotted)

    @cached_property
    def _packages(self) -> dict[str, list[str]]:
        known: dict[str, list[str]] = defaultdict(list)
        for dotted in self._paths:
            known[dotted.partition(".")[0]].append(dotted)
        return known

    def _find(self, near: str, dotted: str) -> str | None:
        """The file of a module; of several the nearest to ``near``."""
        found = self._paths.get(dotted)
        if not found:
            return None
        return max(found, key=lambda path: (_common(path, near), -len(path)))

    @staticmethod
    def _absolute(path: str, module: str) -> str:
        bare = module.lstrip(".")
        level = len(module) - len(bare)
        if not level:
            return bare
        parts = module_name(path).split(".")
        package = parts if path.endswith("__init__.py") else parts[:-1]
        return ".".join([*package[: len(package) - (level - 1)], *([bare] if bare else [])])


def _common(path: str, near: str) -> int:
    count = 0
    for one, other in zip(path.split("/"), near.split("/"), strict=False):
        if one != other:
            break
        count += 1
    return count


class Scopes:
    """Where names are found that a scope does not bind itself."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def cell(self, frame: Frame, name: str) -> int:
        """The cell of a name that ``frame`` binds."""
        known = frame.names.get(name)
        if known is None:
            known = frame.names[name] = self._machine.store.cells()
        return known

    def bound(self, frame: Frame, name: str, scope: str) -> int:
        """The cell that a binding of ``name`` in ``frame`` fills."""
        if scope == "global":
            frame.module.body.bound.add(name)
            return self.cell(frame.module, name)
        if scope == "nonlocal":
            around = frame.parent
            while around is not None and (around.body.kind == "class" or name not in around.body.bound):
                around = around.parent
            return self.cell(around or frame, name)
        return self.cell(frame, name)

    def read(self, frame: Frame, name: str, to: int) -> None:
        """``to`` is what ``name`` means in ``frame``."""
        around: Frame | None = frame
        while around is not None:
            if name in around.body.bound and (around is frame or around.body.kind != "class"):
                self._machine.store.edge(self.cell(around, name), to)
                if around.parent is not None or name not in _BUILTINS:
                    return
            around = around.parent
        self.from_stars(frame.module, name, to)

    def from_stars(self, frame: Frame, name: str, to: int) -> None:
        """``to`` is a name that the module of ``frame`` does not bind itself."""
        machine = self._machine
        if name == "__name__":
            machine.store.put(to, machine.objects.constant(module_name(frame.body.path)))
            return
        if name in _BUILTINS:
            machine.store.put(to, machine.objects.extern(f"builtins.{name}"))
            return
        for module in frame.body.stars:
            machine.attributes.load(machine.modules.starred(frame, module), name, to)
        if not frame.body.stars:
            # A name that a ``global`` statement of some function binds.
            cell = self.cell(frame, name)
            machine.store.edge(cell, to)
            machine.items.later(cell, lambda: machine.store.put(cell, machine.objects.unknown((frame.body, name))))
