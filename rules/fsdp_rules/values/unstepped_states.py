"""Takes of an optimizer's state that run before its first step: torch makes that step for them, and counts it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Set

from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.ir.operations import At, Body, Call, GetAttribute
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.call_order import CallOrder
from fsdp_rules.values.counted_states import COUNTLESS, names_of
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter

_LOADS = re.compile(r"torch\.distributed\.checkpoint\.(\w+\.)*(async_)?load\w*")
_TAKES = frozenset(f"{FSDP}.{name}_state_dict" for name in ("optim", "full_optim", "sharded_optim"))


def unstepped_states(machine: Interpreter) -> dict[str, set[At]]:
    """By files, the places of what is called that takes such a state."""
    takes = [
        (frame, place, one)
        for frame in machine.frames
        for place, one in enumerate(frame.body.operations)
        if isinstance(one, Call) and not _TAKES.isdisjoint(names_of(frame, one, machine))
    ]
    found: dict[str, set[At]] = defaultdict(set)
    if not takes:
        return found
    steps, loaded = _Steps(machine), _loaded_into(machine)
    order = CallOrder(machine, steps.made_by)
    for frame, place, one in takes:
        given = (*one.args, *(value for _, value in one.keywords))
        held = {each for value in given for each in machine.store.of(frame.base + value)}
        if not steps.are_counted(held) or not loaded.isdisjoint(machine.store.of(frame.base + one.to)):
            continue
        if _is_first(frame.body, place, order):
            found[frame.body.path].update(at for at, value in frame.body.uses if value == one.of)
    return found


def _loaded_into(machine: Interpreter) -> set[Obj]:
    """What torch's checkpoints are loaded into: the state that torch makes is what they fill."""
    found: set[Obj] = set()
    for frame in machine.frames:
        for one in frame.body.operations:
            if isinstance(one, Call) and any(_LOADS.fullmatch(name) for name in names_of(frame, one, machine)):
                given = (*one.args, *(value for _, value in one.keywords))
                found.update(each for value in given for each in machine.store.of(frame.base + value))
    inner = (machine.store.of(machine.items.all(one)) for one in tuple(found) if one.kind is Kind.CONTAINER)
    return found.union(*inner)


def _is_first(
    body: Body, place: int, order: CallOrder[bool], steps: bool = False, seen: Set[tuple[Body, int]] = frozenset()
) -> bool:
    """Whether some way leads to the operation ``place`` of ``body`` with no step before it, and to one after it.

    What steps nowhere in sight is stepped by code that calls all this.
    """
    before, after = order.beside(body, place)
    steps = steps or bool(after)
    callers = order.callers(body) - seen
    if before or not callers:
        return steps and not before
    return any(_is_first(caller, at, order, steps, seen | callers) for caller, at in callers)


class _Steps:
    """The steps of optimizers, also by a scaler that is given one."""

    def __init__(self, machine: Interpreter) -> None:
        self._machine = machine
        self._stepping: dict[Body, frozenset[int]] = {}
        self._makers: dict[object, set[str]] = defaultdict(set)
        for frame in machine.frames:
            for one in frame.body.operations:
                if isinstance(one, Call):
                    self._makers[frame.body.path, one.at].update(names_of(frame, one, machine))

    def made_by(self, frame: Frame, call: Call) -> Iterator[bool]:
        """Whether ``call`` makes one."""
        if call.of in self._methods(frame.body):
            owners = [one.of for one in frame.body.operations if isinstance(one, GetAttribute) and one.to == call.of]
            held = [one for of in (*owners, *call.args) for one in self._machine.store.of(frame.base + of)]
            if any(one.kind is Kind.OPTIMIZER for one in held):
                yield True

    def are_counted(self, held: set[Obj]) -> bool:
        """Whether an optimizer among ``held`` may count its steps."""
        made = [self._makers.get(one.data[:2], set()) for one in held if one.kind is Kind.OPTIMIZER]
        return not (made and all(each and each <= COUNTLESS for each in made))

    def _methods(self, body: Body) -> frozenset[int]:
        if body not in self._stepping:
            gets = (one for one in body.operations if isinstance(one, GetAttribute) and one.name == "step")
            self._stepping[body] = frozenset(one.to for one in gets)
        return self._stepping[body]
