"""Models that run without a graph each time: no backward frees what their forwards gather."""

from __future__ import annotations

from fsdp_rules.values.abstract import Kind, Site
from fsdp_rules.values.enclosing import calls_within
from fsdp_rules.values.interpreter import Interpreter


def ungraphed(machine: Interpreter) -> frozenset[Site]:
    """The wraps of models that something calls, and nothing where a backward may follow."""
    forwards: dict[bool, set[Site]] = {True: set(), False: set()}
    for frame, one, is_detached in calls_within(machine, lambda body: body.detached):
        held = machine.store.of(frame.base + one.of)
        sites = {each.since for each in held if each.kind is Kind.MODEL and each.since is not None}
        forwards[is_detached] |= sites
    return frozenset(forwards[True] - forwards[False])
