"""Optimizers that torch's step, by which it makes their states, does not fit: it gives a closure, and runs hooks."""

from __future__ import annotations

from collections import defaultdict

from fsdp_rules.ir.operations import At, Body, Define, GetAttribute
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Class
from fsdp_rules.values.interpreter import Interpreter

_HOOKS = frozenset({"register_step_pre_hook", "register_step_post_hook"})


def without_closure(machine: Interpreter) -> dict[str, set[At]]:
    """By files, the places of expressions that may be such an optimizer."""
    found: dict[str, set[At]] = defaultdict(set)
    hooked = {
        each
        for frame in machine.frames
        for one in frame.body.every(GetAttribute)
        if one.name in _HOOKS
        for each in machine.store.of(frame.base + one.of)
        if each.kind in (Kind.OPTIMIZER, Kind.INSTANCE)
    }
    for frame in machine.frames:
        for at, value in frame.body.uses:
            if any(one in hooked or _takes_none(one) for one in machine.store.of(frame.base + value)):
                found[frame.body.path].add(at)
    return found


def _takes_none(one: Obj) -> bool:
    if one.kind is not Kind.INSTANCE or not isinstance(one.data[0], Class):
        return False
    family = (one.data[0], *one.data[0].above)
    step = next((body for each in family if (body := _step(each.body)) is not None), None)
    return step is not None and len(step.parameters) == 1 and not step.rest and not step.keywords


def _step(cls: Body) -> Body | None:
    """The method ``step`` of a class."""
    methods = (one.body for one in cls.every(Define) if one.body.kind == "function")
    return next((body for body in methods if body.name == "step"), None)
