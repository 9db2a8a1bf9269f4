"""Which expressions are names of parameters or modules, and which have some."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import cache

from fsdp_rules.ir.operations import At
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.enclosing import calls_within
from fsdp_rules.values.interpreter import Interpreter

#: How deep a table may be: a list of pairs, of which the first is a name.
_DEPTH = 2
#: The file and the place of a call that gives names, whether of something that is wrapped, of full parameters, and
#: whether what is looked up there is compared with these names.
Source = tuple[str, At, bool, bool, bool]


class MemberNames:
    """``model.named_parameters()`` and its like give names; those of a module's own parameters alone are none here."""

    def __init__(self, machine: Interpreter) -> None:
        self._machine = machine
        self._in = cache(self._names_in)
        self._gathered = _gathered(machine)

    def among(self, held: Collection[Obj]) -> list[Source]:
        """The calls of which a value that is one of ``held`` may be a name."""
        return _sources(self._source(one) for one in held if one.kind is Kind.NAME)

    def inside(self, held: Collection[Obj]) -> list[Source]:
        """The calls of which a value that is one of ``held`` may have names, as elements or as keys."""
        tables = (one for one in held if one.kind is Kind.CONTAINER)
        return _sources(source for one in tables for source in self._in(one, _DEPTH))

    def _source(self, name: Obj) -> Source:
        path, at = name.data[:2]
        return path, at, name.since is not None, (path, at) in self._gathered, True

    def _names_in(self, table: Obj, depth: int) -> list[Source]:
        items, store = self._machine.items, self._machine.store
        held = store.of(items.all(table))
        inner = [one for one in held if depth and one.kind is Kind.CONTAINER and one is not table]
        deeper = [source for one in inner for source in self._in(one, depth - 1)]
        is_dictionary = table in items.dictionaries
        values, keys = self.among(held), self.among(store.of(items.names(table)))
        beside = [(*one[:-1], False) for one in (*deeper, *(values if is_dictionary else ()))]
        return [*keys, *(() if is_dictionary else values), *beside]


def _sources(found: Iterable[Source]) -> list[Source]:
    """Those that ``found`` has; a run that wraps nothing says no more than one that does."""
    every = set(found)
    return sorted(one for one in every if one[2] or (*one[:2], True, *one[3:]) not in every)


def _gathered(machine: Interpreter) -> set[tuple[str, At]]:
    """The calls that always find full parameters."""
    if not any(frame.body.gathered for frame in machine.frames):
        return set()
    found: dict[bool, set[tuple[str, At]]] = {True: set(), False: set()}
    for frame, one, is_gathered in calls_within(machine, lambda body: body.gathered):
        found[is_gathered].add((frame.body.path, one.at))
    return found[True] - found[False]
