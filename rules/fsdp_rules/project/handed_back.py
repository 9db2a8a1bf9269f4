"""Functions that give back what they are given, so that each call has its own arguments back and not another call's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.functions import parameters_of
from fsdp_rules.project.places import INNER, Flow, Place, Sure, joint


class HandedBack:
    """What calls give back of their own arguments.

    ``load(model, optimizer)`` that returns both is called by several programs of a tree. Were its result the sum of all
    that it is ever given, the model of one program would be that of all others.
    """

    def __init__(self, files: list[FileFacts]) -> None:
        self._files = files
        self._into: dict[Place, list[Flow]] | None = None
        self._filled: set[tuple[str, str, str]] = set()
        self._given: dict[tuple[str, str, str], set[str]] = defaultdict(set)
        self._known: dict[Place, dict[str, Sure]] = {}

    def arguments(self, call: Place, file: FileFacts, result: Place) -> Iterator[tuple[Place, Sure]] | None:
        """The arguments of ``call`` that its ``result`` is one of; None where it may be something else.

        ``result`` is a ``ret`` of a function in ``file`` that the ``call`` runs.
        """
        names = self._parameters(result)
        given = self._given.get((call.path, call.scope, call.name), set())
        if not names or {"*", "**"} & given:
            return None
        return (
            (call._replace(kind="arg", part=part), names[place.name])
            for part in sorted(given)
            for place in parameters_of(file, result.scope, part)
            if place.kind == "param" and place.name in names
        )

    def _parameters(self, result: Place) -> dict[str, Sure]:
        """The parameters that ``result`` may be, each with how sure that is; none where it may be something else."""
        if result not in self._known:
            self._known[result] = self._walked(result)
        return self._known[result]

    def _walked(self, result: Place) -> dict[str, Sure]:
        into = self._sources()

        def sources(place: Place) -> Iterator[tuple[Place, Sure]]:
            # What a part of the model is set to in the function is not among the arguments.
            if (place.path, place.scope, place.name) not in self._filled:
                yield from ((flow.source, flow.sure) for flow in into.get(place, ()))

        found = _arguments_in(result, sources)
        return {} if found is None or found.keys() & {"self", "cls"} else found

    def _sources(self) -> dict[Place, list[Flow]]:
        if self._into is None:
            self._into = defaultdict(list)
            for file in self._files:
                for flow in file.flows:
                    target = flow.target
                    if target.kind == "arg":
                        self._given[target.path, target.scope, target.name].add(target.part)
                    self._into[target].append(flow)
                    owner = target.name.partition(".")[0] if target.kind == "var" else target.name
                    if target.kind in ("item", "put", "set") or owner != target.name:
                        self._filled.add((target.path, target.scope, owner))
        return self._into


def returning(held: Iterable[Place], back: Mapping[Place, Sequence[Place]]) -> dict[tuple[str, str], frozenset[str]]:
    """The last names of the functions that return what is ``held``, and not just what their callers give them.

    Each with the paths of their files. The second name is that of the attribute of what they return that it is in, ""
    where they return it itself. ``back`` has the sources of each place.
    """
    found = (
        place for place in held if place.kind.startswith("ret.") or (place.kind == "ret" and _is_made(place, back))
    )
    paths: dict[tuple[str, str], set[str]] = defaultdict(set)
    for place in found:
        paths[place.scope.rpartition(".")[2], place.kind[4:]].add(place.path)
    return {name: frozenset(files) for name, files in paths.items()}


def _is_made(result: Place, back: Mapping[Place, Sequence[Place]]) -> bool:
    """Whether something but parameters of its function reaches ``result``."""
    return _arguments_in(result, lambda place: ((source, True) for source in back.get(place, ()))) is None


def _is_inner(place: Place) -> bool:
    """Whether ``place`` is the ``module`` of a name: the name itself is another source of the same place."""
    return f".{place.name}".endswith(INNER)


def _arguments_in(result: Place, sources: Callable[[Place], Iterable[tuple[Place, Sure]]]) -> dict[str, Sure] | None:
    """The parameters that reach ``result`` in its function, each with how sure that is; None where more than these do.

    ``sources`` gives what flows into a place.
    """
    found: dict[str, Sure] = {}
    pending: list[tuple[Place, Sure]] = [(result, True)]
    seen = {result}
    while pending:
        place, sure = pending.pop()
        given = [one for one in sources(place) if not _is_inner(one[0])]
        if not given or any(one.scope != result.scope or one.kind not in ("param", "var") for one, _ in given):
            return None
        for source, own in given:
            if source.kind == "param":
                found[source.name] = joint(found.get(source.name, True), joint(sure, own))
            elif source not in seen:
                seen.add(source)
                pending.append((source, joint(sure, own)))
    return found
