"""Follows wrapped models through a whole project: assignments, returns, attributes and arguments."""

from __future__ import annotations

import enum
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from fsdp_rules.project.edges import Edges, Graph, reading
from fsdp_rules.project.functions import Functions
from fsdp_rules.project.places import Place, Sure, field_of

#: How many places a value is followed to. Projects that are followed whole have some thousands; where registries make
#: classes of whatever they are given, everything reaches everything, and no answer says anything.
PLACES = 20_000


class Certainty(enum.IntEnum):
    """How sure it is that an expression holds an FSDP1 model."""

    NO = 0
    MAYBE = 1
    YES = 2


class Held(NamedTuple):
    """That a place may hold a wrapped model: how sure that is, and the wrap (a ``seed``) that it comes from.

    ``by_name``: nothing but the name of an attribute, of some object, led here. Such a guess is not built on: of it
    only what is sure follows.
    ``by_method``: a call of an unknown object led here, by the name of its method.
    """

    certainty: Certainty
    origin: Place
    by_name: bool = False
    by_method: bool = False

    @property
    def order(self) -> tuple[int, bool, bool]:
        """The better reason first."""
        return -self.certainty, self.by_name, self.by_method


def seeds(edges: Edges, kind: str, keeps: Callable[[Place], bool] = lambda place: False) -> dict[Place, Held]:
    """Where models become wrapped ones; ``kind``: "seed", or "kept" for those that stay FSDP1's.

    ``keeps`` says of a wrap that it stays, too.
    """
    kinds = ((place, "kept" if place.kind == "seed" and keeps(place) else place.kind) for place in sorted(edges))
    return {place: Held(Certainty.YES, place) for place, own in kinds if own == kind}


def spread(graph: Graph, start: Mapping[Place, Held]) -> dict[Place, Held]:
    """Follow what is held at ``start`` along the edges of ``graph``, what is surest first, until nothing changes.

    Ends at :data:`PLACES` places.
    """
    if not start:
        return {}
    held: dict[Place, Held] = {}
    # The place itself is the last key, so that what is left out does not hang on the order of the edges.
    queue = [(found.order, 0, place, found) for place, found in start.items()]
    heapq.heapify(queue)
    while queue and len(held) < PLACES:
        _, steps, place, found = heapq.heappop(queue)
        if place in held:
            continue
        held[place] = found
        for target, given in _next(place, found, graph):
            if target not in held:
                heapq.heappush(queue, (given.order, steps + 1, target, given))
    return held


def is_cut(held: Mapping[Place, Held]) -> bool:
    """Whether ``held``, from :func:`spread`, is not all."""
    return len(held) >= PLACES


def trusted(held: dict[Place, Held]) -> dict[Place, Held]:
    """``held``, or what is sure of it where it is not all: what may be anywhere says nothing of any place."""
    return {place: found for place, found in held.items() if found.certainty is Certainty.YES} if is_cut(held) else held


def _next(place: Place, found: Held, graph: Graph) -> Iterator[tuple[Place, Held]]:
    """Where ``found`` is one step on from ``place``, and how sure it is there."""
    maybe = found._replace(certainty=min(found.certainty, Certainty.MAYBE))
    if place.kind == "attr":
        yield from _read(place, found, graph)
        return
    for target, sure in graph.edges.get(place, ()):
        if sure or not found.by_name:
            yield target, found if sure else maybe._replace(by_method=found.by_method or sure is None)
    for target, sure in _of_field(place, graph.edges):
        yield target, found if sure else maybe._replace(by_method=found.by_method or sure is None)
    if place.kind == "var" and not found.by_name:
        yield from ((place._replace(scope=scope), maybe) for scope in reading(place, graph.inner))


def _read(place: Place, found: Held, graph: Graph) -> Iterator[tuple[Place, Held]]:
    """Where an attribute is read by the name under which the file of ``place`` assigns it."""
    if not place.path:
        return
    anywhere = place._replace(path="")
    yield anywhere, found
    given = found._replace(certainty=min(found.certainty, Certainty.MAYBE), by_name=True)
    for target, _ in graph.edges.get(anywhere, ()):
        if graph.programs.may_share(place.path, target.path):
            yield target, given


def _of_field(place: Place, edges: Edges) -> Iterator[tuple[Place, Sure]]:
    """Where the attribute ``place`` of an object is when the object, or one that has the object, has moved on."""
    for base, field in _fields(place):
        for target, sure in edges.get(base, ()):
            reached = field_of(target, field)
            if reached is not None:
                yield reached, sure


def _fields(place: Place) -> Iterator[tuple[Place, str]]:
    """Every object that ``place`` is an attribute of, at any depth, and by what name."""
    if place.kind != "var":
        kind, _, field = place.kind.partition(".")
        if field:
            yield place._replace(kind=kind), field
        return
    names = place.name.split(".")
    for depth in range(len(names) - 1, 0, -1):
        owner = ".".join(names[:depth])
        if owner != "self":
            yield place._replace(name=owner), ".".join(names[depth:])


def wrapped_later(graph: Graph, functions: Functions) -> frozenset[Place]:
    """The places whose value reaches the model of an ``FSDP(...)`` call, whole or in part."""
    start = [place for place in graph.back if place.part in ("0", "module")]
    return _sources(graph, (place for place in sorted(start) if place.kind == "arg" and functions.wraps(place)))


def _sources(graph: Graph, targets: Iterable[Place]) -> frozenset[Place]:
    pending = list(targets)
    found: set[Place] = set()
    while pending:
        place = pending.pop()
        if place in found:
            continue
        found.add(place)
        pending += graph.back.get(place, ())
        owner, _, name = place.name.rpartition(".")
        if place.kind == "var" and owner and owner != "self":
            pending += [place._replace(name=owner), Place("attr", name=name)]
    return frozenset(found)
