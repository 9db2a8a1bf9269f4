"""Calls of functions of the tree that change parameters of models in place."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from fsdp_rules.ir.operations import At, Body, Call, Gathered
from fsdp_rules.values.abstract import COPY, Kind, Obj
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter

#: What changes the tensor, or the tensors, that it is called on or given first.
_CHANGES = re.compile(r"(^operator\.i[A-Z]\w*|[^_.]_)$")
_KEEPS = frozenset({"requires_grad_", "detach_", "retain_grad_"})


def writing_calls(machine: Interpreter) -> dict[str, set[At]]:
    """By files, the places of what is called there that leads to such a function."""
    calls = [(frame, one) for frame in machine.frames for one in frame.body.every(Call)]
    whole = {(body, value) for body in {frame.body for frame, _ in calls} for value in _whole(body)}
    plain = [(frame, one) for frame, one in calls if whole.isdisjoint((frame.body, it) for it in (one.to, *one.args))]
    writers = {frame.body for frame, one in plain if _changes(frame, one, machine)}
    runs = [(frame, one, set(run_by(frame, one, machine))) for frame, one in calls]
    runs = [(frame, one, bodies) for frame, one, bodies in runs if bodies]
    known = 0
    while known < len(writers):
        known = len(writers)
        writers |= {frame.body for frame, _, bodies in runs if not bodies.isdisjoint(writers) and frame.parent}
    found: dict[str, set[At]] = defaultdict(set)
    places = {(frame, one.of) for frame, one, bodies in runs if not bodies.isdisjoint(writers)}
    for frame in {frame for frame, _ in places}:
        found[frame.body.path].update(at for at, value in frame.body.uses if (frame, value) in places)
    return found


def _whole(body: Body) -> Iterator[int]:
    """What code that gathers full parameters calls methods for, and hands on: its changes are of whole parameters."""
    for one in body.every(Gathered):
        yield from (one.to, one.of)


def _changes(frame: Frame, call: Call, machine: Interpreter) -> bool:
    """Whether ``call`` itself changes a parameter."""
    for callee in machine.store.of(frame.base + call.of):
        if callee.kind is Kind.METHOD:
            owner, name = callee.data
            changed, named = [owner], name
        elif callee.kind is Kind.EXTERN and call.args:
            changed, named = list(machine.store.of(frame.base + call.args[0])), callee.data
        else:
            continue
        if _CHANGES.search(named) and named not in _KEEPS and any(_is_parameter(one, machine) for one in changed):
            return True
    return False


def _is_parameter(one: Obj, machine: Interpreter, depth: int = 2) -> bool:
    if one.kind is Kind.CONTAINER and depth:
        return any(_is_parameter(each, machine, depth - 1) for each in machine.store.of(machine.items.all(one)))
    return one.kind is Kind.PARAMETER and one.data != COPY


def run_by(frame: Frame, call: Call, machine: Interpreter) -> Iterator[Body]:
    """The functions of the tree that ``call`` runs."""
    for callee in machine.store.of(frame.base + call.of):
        while callee.kind is Kind.BOUND:
            callee = callee.data[1]
        if callee.kind is Kind.FUNCTION:
            yield callee.data.body
