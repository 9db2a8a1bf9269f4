"""The graph of a tree's values: the flows of its files, with calls joined to the functions that they run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator

from fsdp_rules.fsdp1.names import expand
from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.functions import Functions
from fsdp_rules.project.places import SEED, Flow, Place, Sure, field_of, joint, scopes
from fsdp_rules.project.programs import Programs
from fsdp_rules.project.texts import NO_MODEL

#: From each place to those that its value reaches, each with how sure that is.
Edges = dict[Place, list[tuple[Place, Sure]]]
#: A class: the path of its file, and its qualified name.
Owner = tuple[str, str]
#: Scopes by the path and the name that they read, each with the nearest scope around it that binds the name.
Inner = dict[tuple[str, str], list[tuple[str, str]]]
#: Where comes from what no file of the tree gives.
_UNKNOWN = Place("unknown")


def joined(files: list[FileFacts], functions: Functions) -> Edges:
    """The flows of all files, from source to targets, with each call joined to the functions that it may mean."""
    edges: Edges = defaultdict(list)
    returned = (flow.target for file in files for flow in file.flows if flow.target.kind == "ret")
    tuples = {(place.path, place.scope) for place in returned if place.part}
    for file in files:
        for flow in file.flows:
            reached = targets_of(flow, functions)
            sources = [*_sources(flow, functions, tuples)]
            for source, sure in sources:
                edges[source] += reached if sure else [(target, joint(sure, given)) for target, given in reached]
            if not sources and flow.target.kind == "var":
                # A name that a function gives what nobody knows is its own, too.
                edges[_UNKNOWN].append((flow.target, False))
    # What a file reads under a name is what any file assigns under it.
    for place in {place for found in edges.values() for place, _ in found if place.kind == "attr" and place.path}:
        edges[place].append((place._replace(path=""), True))
    _imported_values(files, functions, edges)
    return edges


class Graph:
    """The flows of a tree, complete, with what is worked out of all of them once.

    What joins files that no program runs together is left out: that is a name of a function, a class or an attribute
    alone, and programs that lie side by side have nothing of each other. ``back`` has the sources of each target,
    ``inner`` the scopes that read a name which one around them binds, ``programs`` which files may run together.
    """

    def __init__(self, edges: Edges, programs: Programs) -> None:
        self.edges = {
            source: [(target, sure) for target, sure in targets if _may_flow(source, target, programs)]
            for source, targets in edges.items()
        }
        self.programs = programs
        self.back: dict[Place, list[Place]] = defaultdict(list)
        for source, targets in self.edges.items():
            for target, _ in targets:
                self.back[target].append(source)
        self.inner = enclosed(self.edges, self.back)


def _may_flow(source: Place, target: Place, programs: Programs) -> bool:
    return not source.path or not target.path or programs.may_share(source.path, target.path)


def enclosed(edges: Edges, bound: Container[Place]) -> Inner:
    """The scopes that read a name which one around them binds, by path and name; ``bound`` has all targets."""
    inner: Inner = defaultdict(list)
    for place in edges:
        root = place._replace(name=place.name.partition(".")[0])
        # A function that binds the name itself does not see the one around it.
        if place.kind != "var" or root in bound:
            continue
        around = scopes(place.scope)[1:] if root.name not in ("self", "cls") else []
        nearest = next((one for one in around if root._replace(scope=one) in bound), "")
        inner[place.path, place.name].append((place.scope, nearest))
    return inner


def reading(place: Place, inner: Inner) -> Iterator[str]:
    """The scopes in that of ``place`` that read it by its name, and between which and it nothing else has the name."""
    for scope, nearest in inner.get((place.path, place.name), ()):
        is_seen = not nearest or place.scope == nearest or place.scope.startswith(f"{nearest}.")
        if is_seen and scope and scope != place.scope and (not place.scope or scope.startswith(f"{place.scope}.")):
            yield scope


def _sources(flow: Flow, functions: Functions, tuples: set[Owner]) -> Iterator[tuple[Place, Sure]]:
    source = flow.source
    if source.kind == "call":
        if not source.part and functions.wraps(source):
            yield Place("seed", source.path, source.scope), flow.sure
        elif not source.part and functions.extends(source):
            yield Place("kept", source.path, source.scope), flow.sure
        for file, qualified, guess in functions.of(source):
            result = Place("ret", file.path, qualified, part=source.part)
            results: list[tuple[Place, Sure]] = [(result, flow.sure)]
            if source.part and (file.path, qualified) not in tuples and not NO_MODEL.search(flow.target.name):
                # A list that is unpacked: which of its elements goes to which name is not known.
                results.append((result._replace(part=""), joint(flow.sure, False)))
            for place, known in results:
                yield place, joint(guess, known)
    elif source.kind.startswith("call."):
        field = source.kind.partition(".")[2]
        made = source._replace(kind="call")
        for place, sure in functions.returns(made):
            yield place._replace(kind=f"ret.{field}"), joint(sure, flow.sure)
        for file, qualified in functions.bases(functions.made_by(made)):
            yield Place("var", file.path, qualified, f"self.{field}"), False
    elif source.kind == "made":
        for file, qualified, sure in functions.of(source):
            if qualified in file.makers:
                yield SEED, joint(sure, flow.sure)
    else:
        yield source, flow.sure


def targets_of(flow: Flow, functions: Functions) -> list[tuple[Place, Sure]]:
    """Where ``flow`` leads, parameters included, each with how sure that is."""
    kind, _, field = flow.target.kind.partition(".")
    if kind != "arg":
        return [(flow.target, flow.sure)]
    given = functions.parameters(flow.target._replace(kind=kind))
    if field:
        given = [(reached, sure) for place, sure in given if (reached := field_of(place, field)) is not None]
    return [(flow.target, flow.sure), *(given if flow.sure else ((place, joint(sure, False)) for place, sure in given))]


def _imported_values(files: list[FileFacts], functions: Functions, edges: Edges) -> None:
    """Let the values of module-level names reach the files that import them."""
    exports = functions.exports
    paths = {file.module: file.path for file in files}
    targets = {place for found in edges.values() for place, _ in found}
    bound: dict[str, set[str]] = defaultdict(set)
    for place in targets:
        if place.kind == "var" and not place.scope and "." not in place.name:
            bound[place.path].add(place.name)
    for place in [one for one in edges if one.kind == "var" and "." in one.name]:
        full = expand(place.name, functions.files[place.path].aliases)
        module, _, name = exports.resolve(full).rpartition(".") if full != place.name else ("", "", "")
        for found in exports.modules.get(module, ()):
            if name in bound[paths[found]]:
                edges[Place("var", paths[found], "", name)].append((place, True))
    for file in files:
        for local, full in file.aliases.items():
            module, _, name = exports.resolve(full).rpartition(".")
            for found in exports.modules.get(module, ()):
                if name in bound[paths[found]]:
                    edges[Place("var", paths[found], "", name)].append((Place("var", file.path, "", local), True))
        for module in exports.starred(file.module):
            for name in sorted(bound[paths[module]] & file.reads):
                edges[Place("var", paths[module], "", name)].append((Place("var", file.path, "", name), True))
