"""The graph of a tree's values: the flows of its files, with calls joined to the functions that they run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterator

from fsdp_rules.fsdp1.names import expand
from fsdp_rules.project.any_names import given_any_name
from fsdp_rules.project.dotted_names import Found
from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.functions import Functions
from fsdp_rules.project.handed_back import HandedBack
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
#: What is called somewhere: the file, the scope, and the name, as in the places of its arguments.
Call = tuple[str, str, str]


def joined(files: list[FileFacts], functions: Functions, programs: Programs) -> Edges:
    """The flows of all files, from source to targets, with each call joined to the functions that it may mean."""
    edges: Edges = defaultdict(list)
    handed = HandedBack(files)
    returned = (flow.target for file in files for flow in file.flows if flow.target.kind == "ret")
    tuples = {(place.path, place.scope) for place in returned if place.part}
    for file in files:
        for flow in file.flows:
            if flow.target.kind == "arg" and flow.target.part == "**" and flow.source.kind == "var":
                for source, target in _by_keyword(flow, functions):
                    edges[source].append((target, False))
            reached = targets_of(flow, functions)
            sources = [*_sources(flow, functions, handed, tuples)]
            for source, sure in sources:
                edges[source] += reached if sure else [(target, joint(sure, given)) for target, given in reached]
            if not sources and flow.target.kind == "var":
                # A name that a function gives what nobody knows is its own, too.
                edges[_UNKNOWN].append((flow.target, False))
    # What a file reads under a name is what any file assigns under it.
    for place in {place for found in edges.values() for place, _ in found if place.kind == "attr" and place.path}:
        edges[place].append((place._replace(path=""), True))
    _imported_values(files, functions, edges)
    _inherited(functions, edges)
    given_any_name(files, functions, edges, programs)
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


def waiting_calls(files: list[FileFacts], functions: Functions) -> dict[Call, list[Flow]]:
    """The flows from and to calls that no dotted path says the function of, by what is called."""
    found: dict[Call, list[Flow]] = defaultdict(list)
    for file in files:
        for flow in file.flows:
            for place, kind in ((flow.source, "call"), (flow.target, "arg")):
                if place.kind == kind and not functions.exact(place):
                    found[called(place)].append(flow)
    return found


def called(place: Place) -> Call:
    """What the call is known by that ``place`` belongs to."""
    return place.path, place.scope, place.name


def _by_keyword(flow: Flow, functions: Functions) -> Iterator[tuple[Place, Place]]:
    """What a call is given by ``**kwargs``, key by key."""
    for file, qualified, _ in functions.of(flow.target):
        for name in file.functions[qualified]:
            yield flow.source._replace(kind="item", part=name), Place("param", file.path, qualified, name)


def _sources(flow: Flow, functions: Functions, handed: HandedBack, tuples: set[Owner]) -> Iterator[tuple[Place, Sure]]:
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
            for one, known in results:
                own = handed.arguments(source, file, one)
                for place, sure in ((one, True),) if own is None else own:
                    yield place, joint(joint(guess, sure), known)
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
    if flow.target.kind == "put":
        module, _, name = functions.exports.resolve(flow.target.name).rpartition(".")
        return [(Place("var", path, "", name), False) for path in functions.paths(module)]
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


def _inherited(functions: Functions, edges: Edges) -> None:
    """Let what one class gives to its objects reach what their other classes read of them: bases, and those below."""
    bound: dict[Owner, set[str]] = defaultdict(set)
    for place in [one for given in edges.values() for one, _ in given]:
        if _is_own(place):
            bound[place.path, place.scope].add(_attribute(place))
    read: dict[Owner, list[Flow]] = defaultdict(list)
    for file in functions.files.values():
        for flow in file.flows:
            if _is_own(flow.source):
                read[file.path, flow.source.scope].append(flow)
    reached: dict[tuple[Place, Place], bool] = {}
    for file in functions.files.values():
        for qualified in file.classes:
            own, family = (file.path, qualified), functions.bases([(file, qualified)])
            others = [(base.path, one) for base, one in family if bound.get((base.path, one))]
            for taken in [(base.path, one) for base, one in family] if others else ():
                for source, flow in ((one, flow) for one in others if one != taken for flow in read.get(taken, ())):
                    if _attribute(flow.source) not in bound[source]:
                        continue
                    given = flow.source._replace(path=source[0], scope=source[1])
                    if taken == own:
                        if _attribute(flow.source) not in bound[own]:
                            reached[given, flow.source] = True
                    elif _runs(family, taken, flow.target.scope, functions):
                        # Which class an object is of that runs a method of one of its bases is not known.
                        for target, _ in targets_of(flow, functions):
                            reached.setdefault((given, target), False)
    for (given, target), is_sure in sorted(reached.items()):
        edges[given].append((target, is_sure))


def _is_own(place: Place) -> bool:
    return place.kind == "var" and place.name.startswith("self.")


def _attribute(place: Place) -> str:
    """``self.x``, of an attribute or an attribute of one."""
    return ".".join(place.name.split(".")[:2])


def _runs(family: list[Found], owner: Owner, scope: str, functions: Functions) -> bool:
    """Whether an object of the first class in ``family`` runs the method of ``owner`` that ``scope`` is in."""
    if not scope.startswith(f"{owner[1]}."):
        return False
    name = scope[len(owner[1]) + 1 :].partition(".")[0]
    runs = [(file.path, one) for file, one in functions.method(family[0], name)]
    return (owner[0], f"{owner[1]}.{name}") in runs or any(name in file.supers.get(one, ()) for file, one in family)
