"""Reads of gradients that no rank has reduced yet: FSDP1 shows a rank's whole ones, FSDP2 none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import Enum

from fsdp_rules.ir.operations import At, Body, Call, Copy, GetAttribute, Operation, Return, SetAttribute, SetItem, Span
from fsdp_rules.project.entered import is_backward
from fsdp_rules.values.abstract import Kind
from fsdp_rules.values.call_order import CallOrder
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.parameter_writers import run_by
from fsdp_rules.values.tensor_reads import are_apart

#: Questions that None answers as well, and methods that read no number.
_ASKS = frozenset({"operator.Is", "operator.Not", "operator.Compare", "builtins.bool"})
_CLEARS = frozenset({"zero_", "detach_"})
#: Methods of optimizers, which run once all is reduced.
_STEPS = frozenset({"step", "zero_grad"})


class _Event(Enum):
    BACKWARD = "a backward"
    UNSYNCED = "a context without synchronisation"


def unsynced_gradients(machine: Interpreter) -> dict[str, set[At]]:
    """By files, the places of gradients that are read so, and of what is called to read them."""
    found: dict[str, set[At]] = defaultdict(set)
    named = {
        frame.body: {one.to: one.name for one in frame.body.operations if isinstance(one, GetAttribute)}
        for frame in machine.frames
    }
    if not any("no_sync" in names.values() for names in named.values()):
        return found

    def happens(frame: Frame, call: Call) -> Iterator[_Event]:
        names = {named[frame.body].get(one, "") for one in _sources(frame.body, call.of)}
        if any(map(is_backward, names)):
            yield _Event.BACKWARD
        if "no_sync" in names:
            yield _Event.UNSYNCED

    order = CallOrder(machine, happens)
    reads = _reads(machine)
    spans = {(body, span) for body in named for span in _blocks(body, order)}
    pending = list(spans)
    while pending:
        body, span = pending.pop()
        backwards = _places(body, _Event.BACKWARD, order)
        values = {_named(body.operations[place]) for place in _after(body, span, reads[body], backwards)}
        found[body.path].update(at for at, value in body.uses if value in values)
        # The last round of a loop, and what runs after the block, reduces what came before.
        if not any(span.begin in loop for loop in body.loops) and not _later(body, span, backwards):
            around = {(caller, Span(place, place + 1)) for caller, place in order.callers(body)} - spans
            spans |= around
            pending += around
    return found


def _sources(body: Body, value: int) -> set[int]:
    """``value``, and what may be it, or may have given it when it was called."""
    found = {value}
    for one in reversed(body.operations):
        if isinstance(one, Copy | Call) and one.to in found:
            found.add(one.of)
    return found


def _places(body: Body, event: _Event, order: CallOrder[_Event]) -> list[int]:
    """The calls of ``body`` that lead to ``event``."""
    return [
        place for place, one in enumerate(body.operations) if isinstance(one, Call) and event in order.at(body, place)
    ]


def _blocks(body: Body, order: CallOrder[_Event]) -> Iterator[Span]:
    """The blocks of ``body`` in contexts without synchronisation that run a backward."""
    entering = {getattr(body.operations[place], "to", -1) for place in _places(body, _Event.UNSYNCED, order)}
    for value, span in body.entered if entering else ():
        runs = any(place in span for place in _places(body, _Event.BACKWARD, order))
        if runs and not _sources(body, value).isdisjoint(entering):
            yield span


def _later(body: Body, span: Span, places: Iterable[int]) -> list[int]:
    """Those of ``places`` that a run may come to after ``span``."""
    return [one for one in places if one >= span.end and not are_apart(body, span.begin, 0, one, 0)]


def _after(body: Body, span: Span, reads: set[int], backwards: list[int]) -> Iterator[int]:
    """Those of ``reads`` that each run of ``span`` leads to, with no other of the ``backwards`` between."""
    inside = [place for place in backwards if place in span]
    later = _later(body, span, backwards)
    loop = min((one for one in body.loops if span.begin in one), key=lambda one: one.end - one.begin, default=None)
    for place in reads:
        if place in span:
            if inside and inside[0] < place:
                yield place
        elif (
            place in _later(body, span, [place])
            and (loop is None or place in loop)
            and not any(one < place for one in later)
            and not any(place in arm and span.begin not in arm for arms in body.arms for arm in arms)
        ):
            yield place


def _reads(machine: Interpreter) -> dict[Body, set[int]]:
    """By functions, the places of operations that read the gradient of a parameter, or lead to one that does."""
    found: dict[Body, set[int]] = defaultdict(set)
    for frame in machine.frames:
        for place, one in enumerate(frame.body.operations):
            is_gradient = (
                isinstance(one, GetAttribute)
                and one.name == "grad"
                and any(each.kind is Kind.PARAMETER for each in machine.store.of(frame.base + one.of))
            )
            if is_gradient and _is_read(frame, _named(one), machine):
                found[frame.body].add(place)
    calls = [
        (frame.body, place, set(run_by(frame, one, machine)))
        for frame in machine.frames
        for place, one in enumerate(frame.body.operations)
        if isinstance(one, Call)
    ]
    known = -1
    while known < (known := sum(map(len, found.values()))):
        for body, place, runs in calls:
            if any(found.get(run) and run.name not in _STEPS for run in runs):
                found[body].add(place)
    return found


def _is_read(frame: Frame, gradient: int, machine: Interpreter) -> bool:
    """Whether a number of ``gradient`` goes anywhere."""
    for one in frame.body.operations:
        if isinstance(one, GetAttribute) and one.of == gradient:
            if one.name not in _CLEARS:
                return True
        elif isinstance(one, Call) and gradient in one.args:
            callees = machine.store.of(frame.base + one.of)
            if not all(each.kind is Kind.EXTERN and each.data in _ASKS for each in callees):
                return True
        elif isinstance(one, Copy | SetAttribute | SetItem | Return) and gradient in (
            one.of,
            getattr(one, "value", -1),
        ):
            return True
    return False


def _named(one: Operation) -> int:
    """The value of what a read is, or calls."""
    return one.of if isinstance(one, Call) else getattr(one, "to", -1)
