"""Under which names a wrapped model leaves the files that are indexed, so that those it can reach are found."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fsdp_rules.fsdp1.names import FSDP, canonical, expand
from fsdp_rules.project.exits import Exit, Way
from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.functions import Functions
from fsdp_rules.project.places import ANY, Place
from fsdp_rules.project.texts import SOME


def exits(
    files: Iterable[FileFacts],
    held: Sequence[Place],
    unwrapped: Iterable[Place],
    groups: frozenset[Place],
    functions: Functions,
) -> frozenset[Exit]:
    """The ways to files that are not among ``files``.

    On them a model that is at one of the places ``held`` may reach one, or one at ``unwrapped``, or a process group at
    ``groups``, may come from there.
    """
    known = {file.path: file for file in files}
    found = {exit_ for file in known.values() for exit_ in _given_names(file)}
    found.update(exit_ for file in known.values() for exit_ in _made_elsewhere(file, functions))
    # What a star import gives decides which names the output may take.
    found.update(Exit(Way.IMPORTED, module) for file in known.values() for module in file.starred)
    found.update(Exit(Way.NAMED, word.root) for file in known.values() for word in file.words if word.root)
    for place in held:
        found.update(of_place(place, known, functions))
    found.update(_extended(known, held, functions))
    for place in unwrapped:
        if place.kind == "call":
            found.update(_called(place, known[place.path], functions))
    names = {(place.path, place.name) for place in held if place.kind == "var"}
    for file in known.values():
        found.update(_fitted(file, {name for path, name in names if path == file.path}, functions))
    for place in groups:
        if place.kind == "var" and place.name.partition(".")[0] in known[place.path].aliases:
            found.add(Exit(Way.IMPORTED, functions.exports.resolve(expand(place.name, known[place.path].aliases))))
    for file in known.values() if groups else ():
        for flow in file.flows:
            if flow.target in groups and flow.source.kind.partition(".")[0] == "call":
                found.update(_called(flow.source._replace(kind="call"), file, functions))
    return frozenset(found)


def of_place(place: Place, known: Mapping[str, FileFacts], functions: Functions) -> Iterator[Exit]:
    """The ways to other files for what is at ``place``."""
    name = place.scope.rpartition(".")[2]
    kind = place.kind.partition(".")[0]
    if kind == "arg":
        yield from _called(place, known[place.path], functions)
    elif kind == "ret" and name.startswith("__"):
        # Nothing calls such a method by its name: whoever has an object of the class may get the model.
        yield Exit(Way.NAMED, place.scope.split(".")[-2] if "." in place.scope else name)
    elif kind == "ret" and "." not in place.scope:
        # Where it is no call it is kept in a table, or handed on.
        yield Exit(Way.NAMED, name)
    elif kind == "ret":
        yield Exit(Way.CALLED, name)
        yield Exit(Way.READ, name)
    elif place.kind == "attr":
        yield Exit(Way.READ, place.name)
    elif place.kind == "var" and place.name == f"self.{ANY}":
        yield Exit(Way.NAMED, name)
    elif place.kind == "var" and not place.scope and "." not in place.name:
        yield Exit(Way.NAMED, place.name)


def _called(place: Place, file: FileFacts, functions: Functions) -> Iterator[Exit]:
    if functions.is_exact(place):
        return
    head, _, name = place.name.rpartition(".")
    if head and functions.is_imported(place):
        yield Exit(Way.IMPORTED, functions.exports.resolve(place.name))
    elif head:
        yield Exit(Way.DEFINED, name)
    # A constructor that is not found is that of a base.
    for owner, qualified in functions.bases(functions.made_by(place)):
        yield from _bases(owner, qualified, functions)
    for module in sorted(file.starred) if not head else ():
        yield Exit(Way.IMPORTED, f"{module}.{name}")


def _extended(known: Mapping[str, FileFacts], held: Iterable[Place], functions: Functions) -> Iterator[Exit]:
    """The ways to what extends the classes whose objects have a model, and to the other classes of those objects."""
    have = {(place.path, place.scope) for place in held if place.kind == "var" and place.name.startswith("self.")}
    for file in known.values() if have else ():
        for qualified in file.classes:
            if any((base.path, one) in have for base, one in functions.bases([(file, qualified)])):
                yield Exit(Way.EXTENDED, qualified.rpartition(".")[2])
                yield from _bases(file, qualified, functions)


def _bases(file: FileFacts, qualified: str, functions: Functions) -> Iterator[Exit]:
    """The ways to the files that the bases of a class are imported from."""
    for base in file.classes[qualified]:
        full = expand(base, file.aliases)
        if full != base:
            yield Exit(Way.IMPORTED, functions.exports.resolve(full))


def _fitted(file: FileFacts, held: set[str], functions: Functions) -> Iterator[Exit]:
    """The ways to what makes the parts that the file gives to the models ``held``, and to what reads its attributes."""
    for one in file.fitted if held else ():
        parts = one.owner.split(".")
        if one.attribute and one.owner in held:
            yield Exit(Way.READ, one.attribute)
        if one.made and any(".".join(parts[:number]) in held for number in range(1, len(parts) + 1)):
            yield Exit(Way.IMPORTED, functions.exports.resolve(one.made))


def _made_elsewhere(file: FileFacts, functions: Functions) -> Iterator[Exit]:
    """The ways to functions that give an object with a method which a class of the tree has: ``build(kind).wrap()``."""
    for flow in file.flows:
        maker, some, method = flow.source.name.rpartition(SOME)
        is_method = some and maker and flow.source.kind == "call" and functions.has_name(method)
        if is_method and functions.is_imported(flow.source):
            yield Exit(Way.IMPORTED, functions.exports.resolve(maker.removesuffix("()")))


def _given_names(file: FileFacts) -> Iterator[Exit]:
    """Names of the file's own for FSDP1's class, and subclasses of it: what another file wraps with."""
    for name, full in file.aliases.items():
        if canonical(full) == FSDP:
            yield Exit(Way.NAMED, name)
    for qualified in file.wrappers:
        yield Exit(Way.NAMED, qualified.rpartition(".")[2])
