"""Calls that always run inside of some code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from fsdp_rules.ir.operations import Body, Call, Span
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.parameter_writers import run_by


def calls_within(machine: Interpreter, spans: Callable[[Body], Sequence[Span]]) -> Iterator[tuple[Frame, Call, bool]]:
    """All calls, each with whether it is in one of the ``spans`` of its body, or that body runs only in such ones."""
    calls = [
        (frame, one, any(place in each for each in spans(frame.body)))
        for frame in machine.frames
        for place, one in enumerate(frame.body.operations)
        if isinstance(one, Call)
    ]
    # Who runs each function outside of them, as far as its own code says.
    callers: dict[Body, set[Body | None]] = defaultdict(set)
    for frame, one, is_within in calls:
        for body in run_by(frame, one, machine):
            callers[body].add(None if is_within else frame.body)
    within, known = set(callers), -1
    while known != len(within):
        known = len(within)
        within = {body for body in within if callers[body] <= within | {None}}
    for frame, one, is_within in calls:
        yield frame, one, is_within or frame.body in within
