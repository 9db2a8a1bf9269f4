"""Follows wrapped models through a whole project: assignments, returns, attributes and arguments."""

from __future__ import annotations

import enum
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import NamedTuple

from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.functions import Functions
from fsdp_rules.project.places import SEED, Flow, Place


class Certainty(enum.IntEnum):
    """How sure it is that an expression holds an FSDP1 model."""

    NO = 0
    MAYBE = 1
    YES = 2


class Held(NamedTuple):
    """That a place may hold a wrapped model: how sure that is, and the wrap (a ``seed``) that it comes from.

    ``by_name``: nothing but the name of an attribute, of some object, led here. Such a guess is not built on: of it
    only what is sure follows.
    """

    certainty: Certainty
    origin: Place
    by_name: bool = False

    @property
    def rank(self) -> tuple[Certainty, bool]:
        """What makes one reason better than another."""
        return self.certainty, not self.by_name


Edges = dict[Place, list[tuple[Place, bool]]]


def joined(files: list[FileFacts], functions: Functions) -> Edges:
    """The flows of all files, from source to targets, with each call joined to the functions that it may mean."""
    edges: Edges = defaultdict(list)
    for file in files:
        for flow in file.flows:
            for source, source_sure in _sources(flow, functions):
                for target, target_sure in _targets(flow, functions):
                    edges[source].append((target, source_sure and target_sure))
    _imported_values(files, functions, edges)
    return edges


def spread(edges: Edges) -> dict[Place, Held]:
    """Follow wrapped models from their ``FSDP(...)`` calls along ``edges`` until nothing changes."""
    bound = {target for found in edges.values() for target, _ in found}
    inner: dict[tuple[str, str], list[str]] = defaultdict(list)
    for place in edges:
        # A function that binds the name itself does not see the one around it.
        if place.kind == "var" and place._replace(name=place.name.partition(".")[0]) not in bound:
            inner[place.path, place.name].append(place.scope)
    held: dict[Place, Held] = {}
    seeds = sorted(place for place in edges if place.kind == "seed")
    queue = deque((seed, Held(Certainty.YES, seed)) for seed in seeds)
    while queue:
        place, found = queue.popleft()
        known = held.get(place)
        if known is not None and known.rank >= found.rank:
            continue
        held[place] = found
        maybe = found._replace(certainty=min(found.certainty, Certainty.MAYBE))
        for target, sure in edges.get(place, ()):
            if place.kind == "attr":
                queue.append((target, maybe._replace(by_name=True)))
            elif sure or not found.by_name:
                queue.append((target, found if sure else maybe))
        if place.kind == "var" and not found.by_name:
            for scope in inner[place.path, place.name]:
                if scope and scope != place.scope and (not place.scope or scope.startswith(f"{place.scope}.")):
                    queue.append((place._replace(scope=scope), maybe))
    return held


def wrapped_later(edges: Edges, functions: Functions) -> frozenset[Place]:
    """The places whose value reaches the model of an ``FSDP(...)`` call, whole or in part, along ``edges``."""
    back: dict[Place, list[Place]] = defaultdict(list)
    for source, targets in edges.items():
        for target, _ in targets:
            back[target].append(source)
    pending = [
        place for place in back if place.kind == "arg" and place.part in ("0", "module") and functions.wraps(place)
    ]
    found: set[Place] = set()
    while pending:
        place = pending.pop()
        if place in found:
            continue
        found.add(place)
        pending += back.get(place, ())
        owner, _, name = place.name.rpartition(".")
        if place.kind == "var" and owner and owner != "self":
            pending += [place._replace(name=owner), Place("attr", name=name)]
    return frozenset(found)


def _sources(flow: Flow, functions: Functions) -> Iterator[tuple[Place, bool]]:
    source = flow.source
    if source.kind == "call":
        if not source.part and functions.wraps(source):
            yield Place("seed", source.path, source.scope), flow.sure
        for place, sure in functions.returns(source):
            yield place, sure and flow.sure
    elif source.kind == "made":
        for file, qualified, sure in functions.of(source):
            if qualified in file.makers:
                yield SEED, sure and flow.sure
    else:
        yield source, flow.sure


def _targets(flow: Flow, functions: Functions) -> Iterator[tuple[Place, bool]]:
    if flow.target.kind == "arg":
        yield flow.target, flow.sure
        for place, sure in functions.parameters(flow.target):
            yield place, sure and flow.sure
    else:
        yield flow.target, flow.sure


def _imported_values(files: list[FileFacts], functions: Functions, edges: Edges) -> None:
    """Let the values of module-level names reach the files that import them."""
    exports = functions.exports
    paths = {file.module: file.path for file in files}
    targets = {place for found in edges.values() for place, _ in found}
    bound: dict[str, set[str]] = defaultdict(set)
    for place in targets:
        if place.kind == "var" and not place.scope and "." not in place.name:
            bound[place.path].add(place.name)
    for file in files:
        for local, full in file.aliases.items():
            module, _, name = exports.resolve(full).rpartition(".")
            for found in exports.modules.get(module, ()):
                if name in bound[paths[found]]:
                    edges[Place("var", paths[found], "", name)].append((Place("var", file.path, "", local), True))
        for module in exports.starred(file.module):
            for name in sorted(bound[paths[module]] & file.reads):
                edges[Place("var", paths[module], "", name)].append((Place("var", file.path, "", name), True))
