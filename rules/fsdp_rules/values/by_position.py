"""The facts of all expressions that may be a sharded model, or something of one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from fsdp_rules.ir.operations import At
from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.value_facts import Fact, Position, ValueFacts
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.interpreter import Interpreter

#: The fields of a fact by what an object is.
_FIELDS = {
    Kind.MODEL: "model",
    Kind.PART: "part",
    Kind.PARAMETER: "parameter",
    Kind.GRADIENT: "gradient",
    Kind.NUMBER: "number",
}


def facts_of(
    sources: Mapping[str, bytes],
    start: Iterable[str],
    alone: Collection[str],
    kept: Collection[tuple[str, int]] = (),
) -> ValueFacts:
    """What the expressions of ``sources`` may be.

    ``start`` are the files that are run first, ``alone`` those whose functions are run though nothing calls them,
    ``kept`` the wraps that stay FSDP1's.
    """
    machine = Interpreter(sources, kept)
    try:
        machine.run(start, alone)
    except RecursionError:
        return ValueFacts()
    found: dict[str, dict[At, list[Collection[Obj]]]] = defaultdict(lambda: defaultdict(list))
    for frame in machine.frames:
        for at, value in frame.body.uses:
            cell = frame.base + value
            if _is_asked(machine, machine.store.of(cell)):
                found[frame.body.path][at].append(machine.store.of(cell))
    known = {}
    for path, by_place in found.items():
        lines = sources[path].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        known[path] = {_position(at, lines): _fact(held, machine) for at, held in by_place.items()}
    return ValueFacts(known)


def _is_asked(machine: Interpreter, held: Collection[Obj]) -> bool:
    return any(one.kind in _FIELDS or (one.kind is Kind.CONTAINER and _gives_parameters(one, machine)) for one in held)


def _gives_parameters(container: Obj, machine: Interpreter, depth: int = 2) -> bool:
    held = machine.store.of(machine.items.all(container))
    if any(one.kind is Kind.PARAMETER for one in held):
        return True
    inner = (one for one in held if one.kind is Kind.CONTAINER and one is not container)
    return depth > 0 and any(_gives_parameters(one, machine, depth - 1) for one in inner)


def _fact(frames: list[Collection[Obj]], machine: Interpreter) -> Fact:
    every = {one for held in frames for one in held}
    found = {name: Certainty.MAYBE for kind, name in _FIELDS.items() if any(one.kind is kind for one in every)}
    if any(one.kind is Kind.CONTAINER and _gives_parameters(one, machine) for one in every):
        found["parameters"] = Certainty.MAYBE
    kinds = {one.kind for one in every}
    if len(kinds) == 1 and len(found) == 1 and machine.is_complete:
        found = dict.fromkeys(found, Certainty.YES)
    return Fact(**found)


def _position(at: At, lines: list[bytes]) -> Position:
    """``at`` in characters; :mod:`ast` counts bytes."""
    return (
        at.line,
        _characters(lines, at.line, at.column),
        at.end_line,
        _characters(lines, at.end_line, at.end_column),
    )


def _characters(lines: list[bytes], line: int, column: int) -> int:
    text = lines[line - 1] if 0 < line <= len(lines) else b""
    return column if text.isascii() else len(text[:column].decode("utf-8", "ignore"))
