"""Where the models that are wrapped come from, and what is said there: the meta device, modules that are imported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.project.edges import Graph
from fsdp_rules.project.exports import Exports
from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.places import Place

#: Where a model is wrapped: the file and the qualified name of the function.
Site = tuple[str, str]
#: A model that is wrapped, as the argument of the call, and the places that it comes through.
Way = tuple[Place, set[Place]]


def is_wrapped_model(place: Place) -> bool:
    """Whether ``place`` is the model that a call of FSDP1's constructor, or of ``wrap``, is given."""
    return place.kind == "arg" and place.part in ("0", "module") and canonical(place.name) in (FSDP, "wrap")


def model_origins(ways: Iterable[Way]) -> dict[Site, frozenset[Site]]:
    """For each function that wraps: the functions, in which files, that its models come through."""
    found: dict[Site, frozenset[Site]] = defaultdict(frozenset)
    for argument, seen in ways:
        found[argument.path, argument.scope] |= {(place.path, place.scope) for place in seen}
    return dict(found)


def model_makers(ways: Iterable[Way], files: Iterable[FileFacts]) -> dict[Site, frozenset[Site]]:
    """For each function that wraps: what is called to make its models, as the file that calls and the name there."""
    called: dict[Place, set[Site]] = defaultdict(set)
    for flow in (flow for file in files for flow in file.flows if flow.source.kind == "call"):
        called[flow.target].add((flow.source.path, flow.source.name))
    found: dict[Site, frozenset[Site]] = defaultdict(frozenset)
    for argument, seen in ways:
        found[argument.path, argument.scope] |= {made for place in seen for made in called.get(place, ())}
    return dict(found)


@dataclass(frozen=True)
class Nesting:
    """Where a model may be wrapped of which a part is wrapped by then."""

    sites: frozenset[Site] = frozenset()
    #: The files of all wraps, one entry for each.
    wraps: tuple[str, ...] = ()

    @classmethod
    def build(cls, graph: Graph, ways: Iterable[Way]) -> Nesting:
        """Of all flows of values: functions that wrap what several places, or unseen ones, give them."""
        sites = (
            (argument.path, argument.scope)
            for argument, seen in ways
            if any(
                len({*graph.back.get(place, ())}) != 1 for place in seen if place.kind == "param" or place == argument
            )
        )
        return cls(frozenset(sites), tuple(place.path for place in graph.edges if place.kind == "seed"))

    def may_be_at(self, path: str, scope: str) -> bool:
        """Whether the function ``scope`` of the file at ``path`` may wrap such a model."""
        return len(self.wraps) > 1 or (path, scope) in self.sites

    def without(self, apart: frozenset[str]) -> Nesting:
        """The same without the wraps of the files that are ``apart``."""
        return replace(self, wraps=tuple(path for path in self.wraps if path not in apart))


def ways_to_wraps(graph: Graph) -> Iterator[Way]:
    """Each model that is wrapped, and the places that it comes through."""
    for argument in filter(is_wrapped_model, list(graph.back)):
        seen: set[Place] = set()
        pending = [argument]
        while pending:
            place = pending.pop()
            if place not in seen and place.kind not in ("attr", "set", "on", "seed"):
                seen.add(place)
                pending += graph.back.get(place, ())
        yield argument, seen


def importing(flagged: Iterable[FileFacts], files: Iterable[FileFacts], exports: Exports) -> frozenset[str]:
    """The paths of the ``flagged`` files and of all that import one of them, directly or not."""
    paths = {file.module: file.path for file in files}
    importers: dict[str, set[str]] = defaultdict(set)
    for file in files:
        for entry in (*file.imported, *file.starred):
            for name in (entry, entry.rpartition(".")[0]):
                for module in _nearest(exports.modules.get(name, ()), name, file.module):
                    importers[paths[module]].add(file.path)
    found: set[str] = set()
    pending = {file.path for file in flagged}
    while pending:
        found |= pending
        pending = {importer for path in pending for importer in importers[path]} - found
    return frozenset(found)


def _nearest(candidates: Iterable[str], name: str, module: str) -> list[str]:
    """Those of ``candidates`` that ``name`` means in ``module``, each program of a tree having its own ``util``."""
    folder = module.split(".")
    starts = {one: one.removesuffix(name).rstrip(".").split(".") for one in candidates}
    above = {one: len(start) for one, start in starts.items() if start in ([""], folder[: len(start)])}
    return [one for one, length in above.items() if length == max(above.values())]
