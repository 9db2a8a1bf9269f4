"""Models that run without a graph, each time or beside others: no backward frees what such forwards gather."""

from __future__ import annotations

from fsdp_rules.ir.operations import Call, GetAttribute
from fsdp_rules.values.abstract import Kind, Site
from fsdp_rules.values.enclosing import calls_within
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.wrapped_modules import inside_of


def lingering(machine: Interpreter) -> frozenset[Site]:
    """The wraps of models that run so where there are others, whose backward may be the last that runs."""
    models = machine.objects.models()
    if len(models) == 1 and len(inside_of(models, machine)) < 2:
        return frozenset()
    return frozenset(_forwards(machine)[True] | _detached(machine))


def _detached(machine: Interpreter) -> set[Site]:
    """The wraps of models of which some call's result is only taken off the graph."""
    found: set[Site] = set()
    for frame in machine.frames:
        cut = {one.of for one in frame.body.operations if isinstance(one, GetAttribute) and one.name == "detach"}
        for one in frame.body.operations if cut else ():
            if isinstance(one, Call) and one.to in cut:
                found |= _sites(frame, one, machine)
    return found


def ungraphed(machine: Interpreter) -> frozenset[Site]:
    """The wraps of models that something calls, and nothing where a backward may follow."""
    forwards = _forwards(machine)
    return frozenset(forwards[True] - forwards[False])


def _forwards(machine: Interpreter) -> dict[bool, set[Site]]:
    """The wraps of models that are called where no graph is built, and where one is."""
    forwards: dict[bool, set[Site]] = {True: set(), False: set()}
    for frame, one, is_detached in calls_within(machine, lambda body: body.detached):
        forwards[is_detached] |= _sites(frame, one, machine)
    return forwards


def _sites(frame: Frame, call: Call, machine: Interpreter) -> set[Site]:
    held = machine.store.of(frame.base + call.of)
    return {each.since for each in held if each.kind is Kind.MODEL and each.since is not None}
