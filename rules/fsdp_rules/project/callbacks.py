"""Which functions a name, an attribute or an element of a container may stand for, followed as models are."""

from __future__ import annotations

import enum
from collections import defaultdict, deque
from collections.abc import Container, Iterable, Iterator
from typing import NamedTuple

from fsdp_rules.fsdp1.names import FSDP, canonical, expand
from fsdp_rules.project.edges import Call, Edges, called, enclosed, reading
from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.functions import Functions, parameters_of
from fsdp_rules.project.places import Flow, Place, scopes
from fsdp_rules.project.programs import Programs

#: How many arguments partials of partials may bind.
MOST_BOUND = 8


class Value(NamedTuple):
    """A function, or (no ``path``) FSDP1's class, with the number of arguments that a partial has bound."""

    path: str
    qualified: str
    bound: int = 0


class Way(enum.IntEnum):
    """How a function came to a place; of a guess by a name no second guess is made."""

    GUESSED = 0
    POSSIBLE = 1
    SURE = 2


class Callbacks:
    """Joins calls of functions that are passed as values to these functions, in ``edges``.

    ``waiting`` are the flows of the calls that no dotted path says the function of, by what is called.
    """

    def __init__(self, functions: Functions, edges: Edges, waiting: dict[Call, list[Flow]], programs: Programs) -> None:
        self._programs = programs
        self.functions = functions
        self.edges = edges
        self.waiting = waiting
        self.bound = {target for found in edges.values() for target, _ in found}
        self.joined: set[Call] = set()
        self._inner = enclosed(edges, self.bound)
        self._values: dict[Place, dict[Value, Way]] = defaultdict(dict)
        #: What is still to be passed on, the best ways first, so that hardly any is passed on twice.
        self._queue: dict[Way, deque[tuple[Place, Value]]] = {way: deque() for way in sorted(Way, reverse=True)}
        self._added: set[tuple[Place, Place, bool]] = set()
        self._calls: dict[Place, list[Call]] = defaultdict(list)
        self._by_attribute: dict[str, list[Call]] = defaultdict(list)
        for call in waiting:
            for place in self.places(call):
                self._calls[place].append(call)
            if self._is_attribute(call):
                self._by_attribute[call[2].rpartition(".")[2]].append(call)

    def join(self, objects: Iterable[Flow]) -> None:
        """Follow every function that is used as a value until no call is left that one more could be called by.

        ``objects`` are flows of what calls of classes give.
        """
        for place in list(self.edges):
            for value, sure in self._seeds(place):
                # Any name of a module or a class: what is asked for by a name that only a running program has.
                guess = Way.GUESSED if place.kind in ("members", "named") else Way.POSSIBLE
                self._reach(place, value, Way.SURE if sure else guess)
        for flow in objects:
            for file, qualified in _callable(flow, self.functions):
                for target in self.targets(flow):
                    self._reach(target, Value(file.path, qualified), Way.SURE if flow.sure else Way.POSSIBLE)
        while (way := next((one for one, waiting in self._queue.items() if waiting), None)) is not None:
            place, value = self._queue[way].popleft()
            if self._values[place][value] is way:
                for call in self._called(place):
                    self._join(call, value, way is Way.SURE and place.kind != "attr")
                self._pass_on(place, value, way)

    def _reach(self, place: Place, value: Value, way: Way) -> None:
        if value.path and place.path and not self._programs.may_share(place.path, value.path):
            return
        known = self._values[place].get(value)
        if (known is None or known < way) and value.bound <= MOST_BOUND:
            self._values[place][value] = way
            self._queue[way].append((place, value))

    def places(self, call: Call) -> list[Place]:
        """Where what ``call`` calls may be, as far as its name is plain or of the object itself."""
        path, scope, name = call
        head, _, last = name.rpartition(".")
        if not head or name.endswith(f"().{last}"):
            # Each function sees the innermost name.
            around = [Place("var", path, one, name) for one in scopes(scope)]
            found = next(([one] for one in around if one in self.bound), around)
            return [*found, Place("callee", path, scope, name)]
        if head == "self":
            owner = next((one for one in scopes(scope) if one in self.functions.files[path].classes), scope)
            return [Place("var", path, owner, name)]
        if self.functions.is_imported(Place("call", path, scope, name)):
            module, _, variable = self.functions.exports.resolve(name).rpartition(".")
            return [Place("var", one, "", variable) for one in self.functions.paths(module)]
        return [Place("var", path, one, name) for one in scopes(scope)]

    def starts(self, call: Call) -> list[Place]:
        """All places that what ``call`` calls comes from."""
        return [
            *self.places(call),
            *([Place("attr", name=call[2].rpartition(".")[2])] if self._is_attribute(call) else []),
        ]

    def carrying(self, functions: Container[tuple[str, str]]) -> Iterator[Place]:
        """The places at which one of ``functions``, by their files and qualified names, or FSDP1's class is a value."""
        for place, values in self._values.items():
            if any(not value.path or (value.path, value.qualified) in functions for value in values):
                yield place

    def _is_attribute(self, call: Call) -> bool:
        head = call[2].rpartition(".")[0]
        if not head or self.functions.is_imported(Place("call", call[0], call[1], call[2])):
            return False
        return head != "self" or not self.bound.intersection(self.places(call))

    def _called(self, place: Place) -> Iterable[Call]:
        return self._by_attribute.get(place.name, ()) if place.kind == "attr" else self._calls.get(place, ())

    def _pass_on(self, place: Place, value: Value, way: Way) -> None:
        for target, sure in self.edges.get(place, ()):
            self._step(place, target, bool(sure), value, way)
        if place.kind == "var":
            for scope in reading(place, self._inner):
                self._reach(place._replace(scope=scope), value, way)

    def _step(self, place: Place, target: Place, sure: bool, value: Value, way: Way) -> None:
        """Pass ``value`` on along one edge. A parameter or a result that is not sure goes by the name of a method."""
        guess = (place.kind == "attr" and target.kind != "attr") or (
            not sure and (target.kind == "param" or place.kind == "ret")
        )
        if guess and way is Way.GUESSED:
            return
        reached = Way.GUESSED if guess else way if sure else min(way, Way.POSSIBLE)
        self._reach(target, _bound(value, target), reached)

    def _join(self, call: Call, value: Value, sure: bool) -> None:
        if value.path and not self._programs.may_share(call[0], value.path):
            return
        self.joined.add(call)
        for flow in self.waiting[call]:
            if called(flow.target) == call and flow.target.kind == "arg" and value.path:
                file = self.functions.files[value.path]
                for parameter in parameters_of(file, value.qualified, flow.target.part, value.bound):
                    self._add(flow.target, parameter, sure)
            if called(flow.source) == call and flow.source.kind == "call" and (value.path or sure):
                for target in self.targets(flow):
                    self._add(self._given(flow.source, value), target, sure and flow.sure)

    def targets(self, flow: Flow) -> Iterator[Place]:
        """Where ``flow`` leads, parameters included."""
        yield flow.target
        if flow.target.kind == "arg":
            yield from (place for place, _ in self.functions.parameters(flow.target))

    def _given(self, source: Place, value: Value) -> Place:
        if not value.path:
            return Place("seed", source.path, source.scope)
        return Place("ret", value.path, value.qualified, part=source.part)

    def _add(self, source: Place, target: Place, sure: bool) -> None:
        if (source, target, sure) in self._added:
            return
        self._added.add((source, target, sure))
        self.edges[source].append((target, sure))
        for value, way in list(self._values.get(source, {}).items()):
            self._step(source, target, sure, value, way)

    def _seeds(self, place: Place) -> Iterator[tuple[Value, bool]]:
        """The functions that ``place`` itself names."""
        if place.kind == "var" and place not in self.bound:
            yield from self._named(place)
        elif place.kind == "fn":
            file = self.functions.files[place.path]
            if not place.scope and place.name in file.functions:
                yield Value(file.path, place.name), True
            elif not place.scope and place.name in file.classes:
                for found, qualified in self.functions.method((file, place.name), "__init__"):
                    yield Value(found.path, qualified), True
            else:
                yield from self._exact(place)
        elif place.kind == "named":
            for found, qualified in self.functions.anywhere(place.name):
                yield Value(found.path, qualified), False
        elif place.kind == "members":
            for found, qualified in self.functions.members(place):
                yield Value(found.path, qualified), False

    def _named(self, place: Place) -> Iterator[tuple[Value, bool]]:
        name = expand(place.name, self.functions.files[place.path].aliases)
        if canonical(self.functions.exports.resolve(name)) == FSDP:
            yield Value("", FSDP), True
        elif self.functions.has_name(name.rpartition(".")[2]):
            yield from self._exact(place._replace(name=name))

    def _exact(self, place: Place) -> Iterator[tuple[Value, bool]]:
        found = self.functions.exact(place)
        for file, qualified in found:
            yield Value(file.path, qualified), len(found) == 1


def _bound(value: Value, target: Place) -> Value:
    return value._replace(bound=value.bound + int(target.part)) if target.kind == "shift" else value


def _callable(flow: Flow, functions: Functions) -> Iterator[tuple[FileFacts, str]]:
    """The ``__call__`` of the objects that the call at the source of ``flow`` makes."""
    for file, qualified in functions.exact(flow.source):
        owner, _, name = qualified.rpartition(".")
        if name == "__init__":
            yield from functions.method((file, owner), "__call__")
