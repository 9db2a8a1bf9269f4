"""Functions that give back what they are given, so that each call has its own arguments back and not another call's."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from fsdp_rules.project.places import INNER, Place, Sure, joint


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
