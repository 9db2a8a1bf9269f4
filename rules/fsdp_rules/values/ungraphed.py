"""Models that run without a graph each time: no backward frees what their forwards gather."""

from __future__ import annotations

from collections import defaultdict

from fsdp_rules.ir.operations import Body, Call
from fsdp_rules.values.abstract import Kind, Site
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.parameter_writers import run_by


def ungraphed(machine: Interpreter) -> frozenset[Site]:
    """The wraps of models that something calls, and nothing where a backward may follow."""
    calls = [
        (frame, one, any(place in each for each in frame.body.detached))
        for frame in machine.frames
        for place, one in enumerate(frame.body.operations)
        if isinstance(one, Call)
    ]
    # Who runs each function where gradients are computed, as far as its own code says.
    runs: dict[Body, set[Body | None]] = defaultdict(set)
    for frame, one, is_detached in calls:
        for body in run_by(frame, one, machine):
            runs[body].add(None if is_detached else frame.body)
    detached, known = set(runs), -1
    while known != len(detached):
        known = len(detached)
        detached = {body for body in detached if runs[body] <= detached | {None}}
    forwards: dict[bool, set[Site]] = {True: set(), False: set()}
    for frame, one, is_detached in calls:
        held = machine.store.of(frame.base + one.of)
        sites = {each.since for each in held if each.kind is Kind.MODEL and each.since is not None}
        forwards[is_detached or frame.body in detached] |= sites
    return frozenset(forwards[True] - forwards[False])
