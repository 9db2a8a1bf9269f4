"""Calls of functions of the tree, or of partials, that lead to one which sets the type of states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from fsdp_rules.ir.operations import At, Body, Call, Yield
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.call_order import CallOrder
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.library import table

_SETS = "state_type"


def state_setters(machine: Interpreter, is_kept: Callable[[Obj], bool]) -> dict[str, set[At]]:
    """Their places, by files; those of the calls that set it themselves are not among them.

    ``is_kept`` says that an object is a model that stays in FSDP1's class.
    """
    found: dict[str, set[At]] = defaultdict(set)
    if not machine.state_types:
        return found

    def sets(frame: Frame, call: Call) -> set[bool]:
        model = [one for value in call.args[:1] for one in machine.store.of(frame.base + value)]
        if model and all(map(is_kept, model)):
            return set()
        return {stays for one in machine.store.of(frame.base + call.of) for stays in _sets(one, machine)}

    order = CallOrder(machine, sets, _ends)
    for frame in machine.frames:
        for place, one in enumerate(frame.body.operations):
            if isinstance(one, Call):
                kinds = {each.kind for each in machine.store.of(frame.base + one.of) if _sets(each, machine)}
                if Kind.PARTIAL in kinds or (order.at(frame.body, place) and not kinds):
                    found[frame.body.path].add(one.at)
    return found


def _sets(one: Obj, machine: Interpreter) -> set[bool]:
    """Whether what a call of ``one`` sets stays without a block: of FSDP1's method, or of a partial of that."""
    if one.kind is Kind.PARTIAL:
        return {stays for each in machine.store.of(one.data[0]) if each is not one for stays in _sets(each, machine)}
    name, kinds = (one.data[1], "unknown") if one.kind is Kind.METHOD else (one.data, "functions")
    is_setting = one.kind in (Kind.METHOD, Kind.EXTERN) and table(kinds).get(name) == _SETS
    return {name.endswith("set_state_dict_type")} if is_setting else set()


def _ends(body: Body, call: Call) -> set[bool]:
    """What ``call`` sets for a block of ``body``, unless that yields in it."""
    spans = [span for value, span in body.entered if value == call.to]
    yields = (place for place, one in enumerate(body.operations) if isinstance(one, Yield))
    return {False} if spans and not any(place in span for place in yields for span in spans) else set()
