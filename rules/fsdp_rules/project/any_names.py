"""Attributes that are assigned under a name which only a running program knows: ``setattr(self, name, model)``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, MutableMapping

from fsdp_rules.project.classes import Owners
from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.functions import Functions
from fsdp_rules.project.places import ANY, Place, Sure, scopes
from fsdp_rules.project.programs import Programs
from fsdp_rules.project.texts import NO_MODEL

#: As those of :mod:`fsdp_rules.project.edges`.
Edges = MutableMapping[Place, list[tuple[Place, Sure]]]


def given_any_name(files: Iterable[FileFacts], functions: Functions, edges: Edges, programs: Programs) -> None:
    """Let what an object is given in this way reach what reads an attribute of it that nothing else assigns."""
    given = {target for targets in edges.values() for target, _ in targets if target.name.endswith(f".{ANY}")}
    if not given:
        return
    _to_callers(given, functions, edges)
    owners = Owners.build(functions.files.values(), programs)
    for file in files:
        for place in sorted({flow.source for flow in file.flows if flow.source.kind == "var"}):
            owner, _, name = place.name.rpartition(".")
            if not owner or owners.assigns(name, place.path) or name == ANY or NO_MODEL.search(name):
                continue
            edges[place._replace(name=f"{owner}.{ANY}")].append((place, False))
            for base, one in functions.bases([(file, place.scope)]) if owner == "self" else ():
                if (base.path, one) != (place.path, place.scope):
                    edges[Place("var", base.path, one, f"self.{ANY}")].append((place, False))


def _to_callers(given: Iterable[Place], functions: Functions, edges: Edges) -> None:
    """Let what a function gives to an object that is one of its parameters reach the object of its callers."""
    objects: dict[Place, list[Place]] = defaultdict(list)
    for source, targets in edges.items():
        for target, sure in targets if source.kind == "var" else ():
            if target.kind == "param" and sure is not None:
                objects[target].append(source)
    pending, seen = [*given], {*given}
    while pending:
        place = pending.pop()
        for source in objects.get(Place("param", place.path, place.scope, place.name.removesuffix(f".{ANY}")), ()):
            file = functions.files[source.path]
            home = next((one for one in scopes(source.scope) if one in file.classes), source.scope)
            scope = home if source.name.partition(".")[0] == "self" else source.scope
            reached = Place("var", source.path, scope, f"{source.name}.{ANY}")
            edges[place].append((reached, False))
            if reached not in seen:
                seen.add(reached)
                pending.append(reached)
