"""The modules that wraps are given: what they are parts of, where they come through, and what returns them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeVar

from fsdp_rules.ir.operations import At
from fsdp_rules.values.abstract import Kind, Obj, Site
from fsdp_rules.values.frames import Class, Frame
from fsdp_rules.values.interpreter import Interpreter

_T = TypeVar("_T")
#: A function: the path of its file and its qualified name.
Function = tuple[str, str]


def inside_of(models: Iterable[Obj], machine: Interpreter) -> set[Obj]:
    """The modules that ``models`` are given, as far as it is known which these are."""
    cells = [machine.attributes.field(one, "(inner)") for one in models]
    unknown = (Kind.MODEL, Kind.PART)
    held = {one for cell in cells for one in machine.store.of(cell)}
    return {one for one in held if one is not machine.objects.open and one.kind not in unknown}


def parts_of(models: Iterable[Obj], machine: Interpreter) -> set[Obj]:
    """The modules inside of ``models``, at any depth, as far as it is known which these are, and what they hold."""
    field, store = machine.attributes.field, machine.store
    found: set[Obj] = set()
    pending = list(models)
    while pending:
        one = pending.pop()
        if one in found:
            continue
        found.add(one)
        if one.kind is Kind.MODEL:
            pending += store.of(field(one, "(inner)"))
        if one in machine.items.modules:
            pending += store.of(machine.items.all(one))
        if one.kind is Kind.INSTANCE and isinstance(one.data[0], Class):
            pending += (each for name in machine.attributes.names(one) for each in store.of(field(one, name)))
    return found


class WrappedModules:
    """Answers for the wraps of one interpretation; ``is_name`` says whether a dotted name is at a place of a file."""

    def __init__(self, machine: Interpreter, is_name: Callable[[str, At], bool]) -> None:
        self._machine = machine
        self._is_name = is_name
        self.inner = {model: inside_of([model], machine) for model in machine.objects.models()}

    @cached_property
    def whole(self) -> set[Obj]:
        """These modules, and the objects of which one of them is an attribute or an element, at any depth."""
        above: dict[Obj, set[Obj]] = defaultdict(set)
        for owner, cell in (*self._machine.attributes.cells(), *self._machine.items.cells()):
            for one in self._machine.store.of(cell) if owner.kind is not Kind.MODEL else ():
                above[one].add(owner)
        found: set[Obj] = set()
        pending = set().union(*self.inner.values())
        while pending:
            found |= pending
            pending = {owner for one in pending for owner in above[one]} - found
        return found

    def through(self) -> dict[Function, frozenset[Function]]:
        """For each function that wraps: the functions that its models come through."""
        return {site: frozenset(found) for site, found in self._joined(self._having).items()}

    def makers(self) -> dict[Function, frozenset[str]]:
        """For each function that wraps: the files of the functions that return its models, and of their classes."""
        returned: dict[Obj, set[str]] = defaultdict(set)
        for frame in self._machine.frames:
            for one in self._machine.store.of(frame.returned):
                elements = self._machine.store.of(self._machine.items.all(one)) if one.kind is Kind.CONTAINER else ()
                for each in (one, *elements):
                    returned[each].add(frame.body.path)
        for one in set().union(*self.inner.values()):
            if one.kind is Kind.INSTANCE and isinstance(one.data[0], Class):
                returned[one].add(one.data[0].body.path)
        return {site: frozenset(found) for site, found in self._joined(returned).items()}

    def nested(self) -> frozenset[tuple[str, int]]:
        """The wraps, by file and line, that are given several modules, or ones that no code gives."""
        given: dict[tuple[str, int], set[Obj]] = defaultdict(set)
        for model, inner in self.inner.items():
            if model.since is not None:
                held = self._machine.store.of(self._machine.attributes.field(model, "(inner)"))
                given[model.since.place] |= inner.union(held)
        return frozenset(
            place
            for place, held in given.items()
            if len(held) != 1 or any(one.is_argument or one is self._machine.objects.open for one in held)
        )

    @cached_property
    def _having(self) -> dict[Obj, set[Function]]:
        """The functions that have a name for each of the modules."""
        found: dict[Obj, set[Function]] = {one: set() for inner in self.inner.values() for one in inner}
        for frame in self._machine.frames:
            for at, value in frame.body.uses:
                held = [one for one in self._machine.store.of(frame.base + value) if one in found]
                for one in held if self._is_name(frame.body.path, at) else ():
                    found[one].add((frame.body.path, frame.scope))
        for one, functions in found.items():
            if one.kind is Kind.INSTANCE and isinstance(one.data[0], Class):
                functions.add((one.data[0].body.path, f"{one.data[0].frame.scope}.__init__"))
        return found

    def _joined(self, found: dict[Obj, set[_T]]) -> dict[Function, set[_T]]:
        """What is ``found`` of the modules of each function that wraps."""
        joined: dict[Function, set[_T]] = defaultdict(set)
        frames = {frame.base: frame for frame in self._machine.frames}
        for model, inner in self.inner.items():
            if model.since is not None:
                site = (model.since.path, self._scope(model.since, frames))
                joined[site].update(*(found.get(one, set()) for one in inner))
        return joined

    def _scope(self, since: Site, frames: dict[int, Frame]) -> str:
        """The qualified name of the function that wraps at ``since``."""
        if since.frame in frames:
            return frames[since.frame].scope
        around = [one for one in frames.values() if one.body.path == since.path and one.body.at.line <= since.line]
        around = [one for one in around if since.line <= one.body.at.end_line]
        return max(around, key=lambda one: one.body.at.line).scope if around else ""


def returning(machine: Interpreter) -> dict[str, frozenset[str]]:
    """The last names of the functions that return a model, and not just what their callers give them.

    Each with the paths of their files.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for frame in machine.frames:
        if frame.body.kind == "function" and _returns(frame, machine):
            found[frame.body.name].add(frame.body.path)
    return {name: frozenset(paths) for name, paths in found.items()}


def _returns(frame: Frame, machine: Interpreter) -> bool:
    """Whether ``frame`` returns a model, or several."""
    store = machine.store
    given = {one for value in range(len(frame.body.parameters)) for one in store.of(frame.base + value)}
    held = {one for cell in (frame.returned, frame.yielded) for one in store.of(cell)} - given
    several = (store.of(machine.items.all(one)) for one in held if one.kind is Kind.CONTAINER)
    return any(one.kind is Kind.MODEL for one in held.union(*several) - given)
