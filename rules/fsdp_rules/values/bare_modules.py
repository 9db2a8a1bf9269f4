"""Modules of models by what FSDP1 makes of them: never a wrapper, or each wrapper and what it holds."""

from __future__ import annotations

from collections import defaultdict

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.ir.operations import At, Body, Copy, Element, GetAttribute, GetItem, Narrowed
from fsdp_rules.values.abstract import Kind
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.module_members import INNER
from fsdp_rules.values.tensor_reads import TensorReads

_MODULES = frozenset({Kind.MODEL, Kind.PART})
#: Methods that give all modules, a wrapper and then what it holds.
_GIVES = frozenset({"modules", "named_modules"})


def bare_modules(machine: Interpreter) -> tuple[dict[str, set[At]], dict[str, set[At]]]:
    """By files, the places of modules that surely are no wrappers, and of all modules, one after the other.

    Each of either may be a unit under FSDP2.
    """
    found: tuple[dict[str, set[At]], dict[str, set[At]]] = (defaultdict(set), defaultdict(set))
    reads = TensorReads(machine)
    for body in reads.bodies:
        for places, values in zip(found, (_bare(body, reads), _members(body, reads)), strict=True):
            if values:
                places[body.path].update(at for at, value in body.uses if value in values)
    return found


def _members(body: Body, reads: TensorReads) -> set[int]:
    """What loops over the modules of a model run over, and the names and numbers beside that."""
    methods = {
        one.to
        for one in body.operations
        if isinstance(one, GetAttribute) and one.name in _GIVES and _has_module(body, one.of, reads)
    }
    several, found = reads.given_by(body, frozenset(methods)), set[int]()
    for one in body.operations if several else ():
        match one:
            case Element(to=to, of=of) if of in several:
                found.add(to)
            case GetItem(to=to, of=of) | Copy(to=to, of=of) if of in found:
                found.add(to)
    return found


def _bare(body: Body, reads: TensorReads) -> set[int]:
    made: dict[int, list[int | None]] = defaultdict(list)
    for one in body.operations:
        match one:
            case GetAttribute(to=to, of=of, name=name) if name in INNER and _has_module(body, of, reads):
                made[to].append(None)
            case Narrowed(to=to, of=of, is_one=False) if _is_fsdp1(body, one.cls, reads) and _has_module(
                body, of, reads
            ):
                made[to].append(None)
            case Copy(to=to, of=of) | Narrowed(to=to, of=of):
                made[to].append(of)
    found, known = {to for to, of in made.items() if of == [None]}, -1
    while known < (known := len(found)):
        found |= {to for to, every in made.items() if all(of is None or of in found for of in every)}
    return found


def _has_module(body: Body, value: int, reads: TensorReads) -> bool:
    return any(one.kind in _MODULES for one in reads.held(body, value))


def _is_fsdp1(body: Body, value: int, reads: TensorReads) -> bool:
    held = reads.held(body, value)
    return bool(held) and all(one.kind is Kind.EXTERN and canonical(one.data) == FSDP for one in held)
