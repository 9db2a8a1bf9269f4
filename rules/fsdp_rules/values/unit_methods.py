"""Calls of models' own methods that run modules of them without a call of the model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from fsdp_rules.ir.operations import At, Body, Call, GetAttribute
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Class
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.tensor_reads import TensorReads


def unit_methods(machine: Interpreter, is_other: Callable[[Obj], bool]) -> tuple[dict[str, set[At]], ...]:
    """By files, the places of what is called on models from outside of them that leads to a call of a module.

    Also those that lead to a call of another method of a module in the model. ``is_other`` says that an object is
    surely no module.
    """
    reads = TensorReads(machine)
    calls = [(body, one) for body in reads.bodies for one in body.every(Call)]
    methods: dict[Body, set[Body]] = defaultdict(set)
    for body, one in calls:
        methods[body] |= _methods(reads.callees(body, one))
    inner = {method for each in methods.values() for method in each}
    own = [(body, one) for body, one in calls if body in inner]
    running = {body for body, one in own if _runs_module(body, one, reads)}
    entering = {body for body, one in own if _enters_module(body, one, reads, is_other)}
    return tuple(_leading(starts, calls, methods, inner, reads) for starts in (running, entering))


def _leading(
    found: set[Body],
    calls: list[tuple[Body, Call]],
    methods: dict[Body, set[Body]],
    inner: set[Body],
    reads: TensorReads,
) -> dict[str, set[At]]:
    """By files, the places of what is called from outside of models that leads to one of the methods ``found``."""
    known = 0
    while known < len(found):
        known = len(found)
        found |= {body for body in inner if not found.isdisjoint(methods[body])}
    places: dict[str, set[At]] = defaultdict(set)
    outside = ((body, one) for body, one in calls if found and body not in inner)
    leading = {(body, one.of) for body, one in outside if found & _methods(reads.callees(body, one))}
    for body in {body for body, _ in leading}:
        places[body.path].update(at for at, value in body.uses if (body, value) in leading)
    return places


def _enters_module(body: Body, call: Call, reads: TensorReads, is_other: Callable[[Obj], bool]) -> bool:
    """Whether ``call`` is one of a method of another module, which FSDP2's hooks of that do not see."""
    bound = [one.data for one in reads.callees(body, call) if one.kind is Kind.BOUND]
    others = [
        function for receiver, function in bound if receiver not in reads.held(body, 0) and not is_other(receiver)
    ]
    return any(one.kind is Kind.FUNCTION and one.data.body.name not in ("forward", "__call__") for one in others)


def _methods(callees: set[Obj]) -> set[Body]:
    """The functions of the tree among ``callees`` that are methods of a sharded model."""
    bound = (one.data for one in callees if one.kind is Kind.BOUND and one.data[1].kind is Kind.FUNCTION)
    return {inner.data.body for receiver, inner in bound if _is_inside(receiver)}


def _is_inside(one: Obj) -> bool:
    """Whether ``one`` is the module inside of a model as its own methods see it."""
    return one.kind is Kind.PART and isinstance(one.data, Obj) and one.data.kind is Kind.MODEL


def _runs_module(body: Body, call: Call, reads: TensorReads) -> bool:
    """Whether ``call`` is one of a module: of the object, an attribute that is no method, or what a loop gives."""
    if not any(one.kind in (Kind.PART, Kind.MODEL) for one in reads.callees(body, call)):
        return False
    got = next((one for one in body.every(GetAttribute) if one.to == call.of), None)
    if got is None or got.of == 0:
        return True
    owners = reads.held(body, got.of)
    return all(one.kind is not Kind.PART for one in owners) or any(_has_module(one, got.name) for one in owners)


def _has_module(one: Obj, name: str) -> bool:
    """Whether ``one`` is a part of a class of the tree whose ``name`` is no method."""
    made = one.data if one.kind is Kind.PART and isinstance(one.data, Obj) else None
    cls = made.data[0] if made is not None and made.kind is Kind.INSTANCE else None
    return isinstance(cls, Class) and not any(name in each.body.bound for each in (cls, *cls.above))
