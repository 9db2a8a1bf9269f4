"""Where functions that are called as values come from: the files to look in, and the calls that nothing is known of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator

from fsdp_rules.fsdp1.names import expand
from fsdp_rules.project.callbacks import Callbacks
from fsdp_rules.project.edges import Call, Graph, called
from fsdp_rules.project.exits import Exit, Way
from fsdp_rules.project.flow import Held
from fsdp_rules.project.leaving import of_place
from fsdp_rules.project.places import Place, scopes
from fsdp_rules.project.texts import UNNAMED

#: Functions of configuration libraries that call what a configuration names.
CONFIGURED = frozenset({"instantiate"})


class Unseen:
    """Looks back from the calls that are given a wrapped model (``held``) to what they may call.

    ``kept`` are the places of models that keep FSDP1.
    """

    def __init__(self, callbacks: Callbacks, held: dict[Place, Held], graph: Graph, kept: Iterable[Place] = ()) -> None:
        self._callbacks = callbacks
        self._giving = {(place.path, place.scope) for place in (*held, *kept) if place.kind == "ret"}
        self._closed: set[Place] = set()
        self._back = graph.back
        #: What calls give of which no function is known, so that no edge is from there.
        self._given: dict[Place, list[Place]] = defaultdict(list)
        for flow in (flow for flows in callbacks.waiting.values() for flow in flows if flow.source.kind == "call"):
            for target in callbacks.targets(flow):
                self._given[target].append(flow.source)
        given = {place for place in held if place.kind == "arg"}
        for flow in (flow for flows in callbacks.waiting.values() for flow in flows if flow.target.kind == "arg"):
            # What a base of the class assigns is looked up where it is read.
            if flow.source.name.startswith("self.") and Place("attr", name=flow.source.name[5:]) in held:
                given.add(flow.target)
        self.calls = sorted(
            {
                call
                for call in map(called, given)
                if call in callbacks.waiting and not any(place in held for place in callbacks.places(call))
            }
        )

    def exits(self) -> Iterator[Exit]:
        """The ways to files that may have one of the functions, or call one that gives a model from a table."""
        functions = self._callbacks.functions
        for place in self._callbacks.carrying(self._giving):
            yield from of_place(place, functions.files, functions)
            if place.kind == "arg" and place.name.startswith(UNNAMED):
                # What a decorator with arguments registers.
                for one in self._sources([place._replace(kind="callee", part="")]):
                    yield from self._exits(one)
        for path in {path for path, _ in self._giving}:
            yield Exit(Way.LOOKED_UP, functions.files[path].module.rpartition(".")[2])
        for call in self.calls:
            if call[2].rpartition(".")[0].endswith("import_module"):
                yield Exit(Way.DEFINED, call[2].rpartition(".")[2])
            if call[2].startswith("self."):
                yield from self._bases(call)
        for place in self._sources(place for call in self.calls for place in self._callbacks.starts(call)):
            yield from self._exits(place)

    def unknown(self) -> dict[str, frozenset[Call]]:
        """The calls, by path, of which no function is known, though the tree says where it comes from."""
        found: dict[str, set[Call]] = defaultdict(set)
        for call in self.calls:
            if call not in self._callbacks.joined and self._is_unknown(call):
                found[call[0]].add(call)
        return {path: frozenset(calls) for path, calls in found.items()}

    def _is_unknown(self, call: Call) -> bool:
        name = call[2].rpartition(".")[2]
        if name in CONFIGURED or call[2].rpartition(".")[0].endswith("import_module"):
            return True
        seen: list[Place] = []
        for place in self._sources(self._callbacks.starts(call), self._closed):
            if self._is_open(place):
                return True
            seen.append(place)
        self._closed.update(seen)
        return False

    def _is_open(self, place: Place) -> bool:
        """Whether nothing says what is at ``place``, though a value has to come there."""
        if self._back.get(place) or self._given.get(place):
            return False
        if place.kind == "var":
            return not place.scope and place.name in self._callbacks.functions.files[place.path].assigned
        return place.kind in ("param", "members", "named")

    def _sources(self, starts: Iterable[Place], passed: Container[Place] = ()) -> Iterator[Place]:
        """Where what is at ``starts`` comes from, themselves included, but not by way of those ``passed`` before."""
        found: set[Place] = set()
        pending = list(starts)
        while pending:
            place = pending.pop()
            if place in found or place in passed:
                continue
            found.add(place)
            yield place
            pending += self._back.get(place, ())
            pending += self._given.get(place, ())
            if place.kind == "var" and place not in self._callbacks.bound:
                around = (place._replace(scope=one) for one in scopes(place.scope)[1:])
                pending += [one for one in around if one in self._callbacks.bound or not one.scope]

    def _bases(self, call: Call) -> Iterator[Exit]:
        """The ways to the bases of the class around ``call``, which may give it the attribute that it calls."""
        file = self._callbacks.functions.files[call[0]]
        pending = [one for one in scopes(call[1]) if one in file.classes][:1]
        seen: set[str] = set()
        while pending:
            owner = pending.pop()
            for base in file.classes.get(owner, ()) if owner not in seen else ():
                pending.append(base)
                full = expand(base, file.aliases)
                if full != base:
                    yield Exit(Way.IMPORTED, self._callbacks.functions.exports.resolve(full))
            seen.add(owner)

    def _exits(self, place: Place) -> Iterable[Exit]:
        functions = self._callbacks.functions
        file = functions.files.get(place.path)
        if place.kind == "param":
            # A decorator's function is inside the one that other files know.
            return [Exit(Way.NAMED, one) for one in place.scope.split(".") if not one.startswith(("__", "<"))]
        if place.kind == "attr" and place in self._callbacks.bound:
            return [Exit(Way.READ, place.name)]
        if place.kind == "named":
            return [Exit(Way.DEFINED, place.name)]
        if file is None or place.kind not in ("var", "fn", "members", "call"):
            return []
        if place.kind in ("fn", "call"):
            return [Exit(Way.IMPORTED, functions.exports.resolve(place.name))] if functions.is_imported(place) else []
        root = place.name.partition(".")[0]
        if root in file.aliases:
            return [Exit(Way.IMPORTED, functions.exports.resolve(expand(place.name, file.aliases)))]
        if place.kind == "var" and not place.scope and place.name in file.assigned:
            return [Exit(Way.NAMED, place.name)]
        return []
