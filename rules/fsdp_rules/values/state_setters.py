"""Calls of functions of the tree, or of partials, that lead to one which sets the type of states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fsdp_rules.ir.operations import At, Body, Call, Yield
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.call_order import CallOrder
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.library import table

_SETS = "state_type"


def state_setters(machine: Interpreter) -> dict[str, set[At]]:
    """Their places, by files; those of the calls that set it themselves are not among them."""
    found: dict[str, set[At]] = defaultdict(set)
    if not machine.state_types:
        return found

    def sets(frame: Frame, call: Call) -> Iterator[bool]:
        if _outlives(frame.body, call) and any(_sets(one, machine) for one in machine.store.of(frame.base + call.of)):
            yield True

    order = CallOrder(machine, sets)
    for frame in machine.frames:
        for place, one in enumerate(frame.body.operations):
            if isinstance(one, Call):
                kinds = {each.kind for each in machine.store.of(frame.base + one.of) if _sets(each, machine)}
                if Kind.PARTIAL in kinds or (order.at(frame.body, place) and not kinds):
                    found[frame.body.path].add(one.at)
    return found


def _sets(one: Obj, machine: Interpreter) -> bool:
    """Whether a call of ``one`` sets it: of FSDP1's method, or of a partial of that."""
    if one.kind is Kind.PARTIAL:
        return any(_sets(each, machine) for each in machine.store.of(one.data[0]) if each is not one)
    is_method = one.kind is Kind.METHOD and table("unknown").get(one.data[1]) == _SETS
    return is_method or (one.kind is Kind.EXTERN and table("functions").get(one.data) == _SETS)


def _outlives(body: Body, call: Call) -> bool:
    """Whether what ``call`` sets may be in force outside of ``body``: unless it has ended before that yields."""
    spans = [span for value, span in body.entered if value == call.to]
    yields = [place for place, one in enumerate(body.operations) if isinstance(one, Yield)]
    return not spans or any(place in span for span in spans for place in yields)
