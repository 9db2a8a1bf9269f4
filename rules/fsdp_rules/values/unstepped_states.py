"""Takes of an optimizer's state that run before its first step: torch makes that step for them, and counts it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from functools import partial
from typing import TypeVar

from fsdp_rules.ir.operations import At, Body, Call, GetAttribute
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.call_order import CallOrder
from fsdp_rules.values.counted_states import COUNTLESS, READS, TAKES, names_of
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter

Event = TypeVar("Event")

_LOADS = re.compile(r"torch\.distributed\.checkpoint\.(\w+\.)*(async_)?load\w*")


def unstepped_states(machine: Interpreter) -> dict[str, set[At]]:
    """By files, the places of what is called that takes such a state."""
    takes = [*_calls(machine, TAKES.__contains__)]
    steps, loaded = _Steps(machine), _loaded_into(machine) if takes else set()

    def counted(frame: Frame, one: Call) -> bool:
        held = _given(frame, one, machine)
        return steps.are_counted(held) and loaded.isdisjoint(machine.store.of(frame.base + one.to))

    return _first(takes, machine, steps.made_by, lambda *take: {True} if counted(*take) else set())


def filled_states(machine: Interpreter) -> dict[bool, dict[str, set[At]]]:
    """By files, the places of loads of torch's checkpoints that fill such a state; False: one that may be such a state.

    An optimizer that is made in several ways may be another one where its state is taken.
    """
    loads = [*_calls(machine, lambda name: _LOADS.fullmatch(name) is not None)]
    steps = _Steps(machine) if loads else None
    fresh: dict[bool, set[Obj]] = {True: set(), False: set()}
    for frame, place, one in _calls(machine, TAKES.__contains__) if steps is not None else ():
        made = machine.store.of(frame.base + one.to)
        held = _optimizers(frame, one, machine)
        orders = [(each, CallOrder(machine, partial(steps.is_step, each))) for each in held] if steps else []
        if not orders or any(order.latest(frame.body, place) != {True} for _, order in orders):
            fresh[True] |= set(made)
        elif any(steps.is_made_again(each, order) for each, order in orders if steps):
            fresh[False] |= set(made)
    found: dict[bool, dict[str, set[At]]] = {sure: defaultdict(set) for sure in fresh}
    for frame, _, one in loads:
        for sure, states in fresh.items():
            if not states.isdisjoint(_deep(_given(frame, one, machine), machine)):
                found[sure][frame.body.path].update(frame.body.places(one.of))
    return found


def unscheduled_loads(machine: Interpreter) -> dict[str, set[At]]:
    """By files, the places of what is called that reads a state for an optimizer whose scheduler is built later."""
    optimizers = partial(_optimizers, machine=machine)

    def scheduled(frame: Frame, one: Call) -> set[Obj]:
        builds = any(name.startswith("torch.optim.lr_scheduler.") for name in names_of(frame, one, machine))
        return optimizers(frame, one) if builds else set()

    return _first([*_calls(machine, READS.__contains__)], machine, scheduled, optimizers)


def _calls(machine: Interpreter, of: Callable[[str], bool]) -> Iterator[tuple[Frame, int, Call]]:
    """The calls of functions outside of the tree whose names are ``of`` some kind, each with its place."""
    for frame in machine.frames:
        for place, one in enumerate(frame.body.operations):
            if isinstance(one, Call) and any(map(of, names_of(frame, one, machine))):
                yield frame, place, one


def _given(frame: Frame, call: Call, machine: Interpreter) -> set[Obj]:
    values = (*call.args, *(value for _, value in call.keywords))
    return {each for value in values for each in machine.store.of(frame.base + value)}


def _optimizers(frame: Frame, call: Call, machine: Interpreter) -> set[Obj]:
    return {one for one in _given(frame, call, machine) if one.kind is Kind.OPTIMIZER or one.is_argument}


def _first(
    calls: Sequence[tuple[Frame, int, Call]],
    machine: Interpreter,
    happens: Callable[[Frame, Call], Iterable[Event]],
    of: Callable[[Frame, Call], Set[Event]],
) -> dict[str, set[At]]:
    """The places of those ``calls`` that may run before the first of the events ``of`` each."""
    found: dict[str, set[At]] = defaultdict(set)
    order = CallOrder(machine, happens) if calls else None
    for frame, place, one in calls:
        if order is not None and any(_is_first(frame.body, place, order, event) for event in of(frame, one)):
            found[frame.body.path].update(frame.body.places(one.of))
    return found


def _loaded_into(machine: Interpreter) -> set[Obj]:
    """What torch's checkpoints are loaded into: the state that torch makes is what they fill."""
    found: set[Obj] = set()
    for frame, _, one in _calls(machine, lambda name: _LOADS.fullmatch(name) is not None):
        found |= _given(frame, one, machine)
    return _deep(found, machine)


def _deep(held: set[Obj], machine: Interpreter) -> set[Obj]:
    """``held``, and what the containers among them have."""
    return held.union(*(machine.store.of(machine.items.all(one)) for one in held if one.kind is Kind.CONTAINER))


def _is_first(
    body: Body,
    place: int,
    order: CallOrder[Event],
    event: Event,
    follows: bool = False,
    seen: Set[tuple[Body, int]] = frozenset(),
) -> bool:
    """Whether some way leads to the operation ``place`` of ``body`` with no ``event`` before it, and to one after it.

    What happens nowhere in sight, as a step, is left to code that calls all this.
    """
    before, after = order.beside(body, place)
    follows = follows or event in after
    callers = order.callers(body) - seen
    if event in before or not callers:
        return follows and event not in before
    return any(_is_first(caller, at, order, event, follows, seen | callers) for caller, at in callers)


class _Steps:
    """The steps of optimizers, also by a scaler that is given one."""

    def __init__(self, machine: Interpreter) -> None:
        self._machine = machine
        self._stepping: dict[Body, frozenset[int]] = {}
        self._makers: dict[object, set[str]] = defaultdict(set)
        for frame in machine.frames:
            for one in frame.body.every(Call):
                self._makers[frame.body.path, one.at].update(names_of(frame, one, machine))

    def made_by(self, frame: Frame, call: Call) -> Iterator[bool]:
        """Whether ``call`` makes one."""
        if any(one.kind is Kind.OPTIMIZER for one in self._stepped(frame, call)):
            yield True

    def is_step(self, optimizer: Obj, frame: Frame, call: Call) -> Iterator[bool]:
        """Whether ``call`` makes one of ``optimizer`` (True), or the optimizer itself (False)."""
        if optimizer in self._stepped(frame, call):
            yield True
        if optimizer.data[:2] == (frame.body.path, call.at) and optimizer.kind is Kind.OPTIMIZER:
            yield False

    def is_made_again(self, optimizer: Obj, order: CallOrder[bool]) -> bool:
        """Whether the call that makes ``optimizer`` runs in a loop, or in a function that several calls run."""
        for body in {frame.body for frame in self._machine.frames if frame.body.path == optimizer.data[0]}:
            for place, one in enumerate(body.operations):
                if isinstance(one, Call) and one.at == optimizer.data[1]:
                    return self._runs_again(body, place, order)
        return True

    def _runs_again(self, body: Body, place: int, order: CallOrder[bool], seen: Set[Body] = frozenset()) -> bool:
        callers = order.callers(body)
        return (
            any(place in loop for loop in body.loops)
            or len(callers) > 1
            or body in seen
            or any(self._runs_again(caller, at, order, {*seen, body}) for caller, at in callers)
        )

    def _stepped(self, frame: Frame, call: Call) -> list[Obj]:
        if call.of not in self._methods(frame.body):
            return []
        owners = [one.of for one in frame.body.every(GetAttribute) if one.to == call.of]
        return [one for of in (*owners, *call.args) for one in self._machine.store.of(frame.base + of)]

    def are_counted(self, held: set[Obj]) -> bool:
        """Whether an optimizer among ``held`` may count its steps."""
        made = [self._makers.get(one.data[:2], set()) for one in held if one.kind is Kind.OPTIMIZER]
        return not (made and all(each and each <= COUNTLESS for each in made))

    def _methods(self, body: Body) -> frozenset[int]:
        if body not in self._stepping:
            gets = (one for one in body.every(GetAttribute) if one.name == "step")
            self._stepping[body] = frozenset(one.to for one in gets)
        return self._stepping[body]
