"""Loads of states that were taken of an optimizer in the same run, and may be read again after more steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.ir.operations import At, Body, Call, GetItem, SetAttribute
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.library import table
from fsdp_rules.values.parameter_writers import run_by

#: What takes the state of an optimizer, and what reads one for it.
TAKES = frozenset(f"{FSDP}.{name}_state_dict" for name in ("optim", "full_optim", "sharded_optim"))
READS = frozenset(
    {f"{FSDP}.optim_state_dict_to_load", f"{FSDP}.flatten_sharded_optim_state_dict"}
    | {f"{FSDP}.{name}_full_optim_state_dict" for name in ("shard", "scatter")}
)
#: Optimizers that count no steps.
COUNTLESS = frozenset({"torch.optim.SGD"})


def counted_states(machine: Interpreter) -> tuple[dict[str, set[At]], dict[str, set[At]]]:
    """By files, the places of what is called that loads such a state, and of what takes one that is loaded at all."""
    calls = [(frame, one) for frame in machine.frames for one in frame.body.every(Call)]
    names = {(frame, one.of): set(names_of(frame, one, machine)) for frame, one in calls}
    taken = {
        state
        for frame, one in calls
        if not TAKES.isdisjoint(names[frame, one.of])
        for state in machine.store.of(frame.base + one.to)
        if state.kind is Kind.CONTAINER
    }
    loads = [(frame, one) for frame, one in calls if not READS.isdisjoint(names[frame, one.of])]
    if not loads:
        return {}, {}
    holders = _holders(taken, machine)
    again = {one for frame in machine.frames for one in _kept(frame, machine)} & holders.keys()
    loading = _callers({frame.body for frame, _ in loads}, calls, machine)
    for frame in machine.frames:
        again |= _read_again(frame, loading, holders, names, machine)
    states = {state for one in again for state in holders[one]}
    made = {(frame.body.path, one.at): names[frame, one.of] for frame, one in calls}
    found: dict[str, set[At]] = defaultdict(set)
    for frame, one in loads:
        given = {held for value in _given(one) for held in machine.store.of(frame.base + value)}
        optimizers = [made.get(held.data[:2], set()) for held in given if held.kind is Kind.OPTIMIZER]
        if given & states and not (optimizers and all(each and each <= COUNTLESS for each in optimizers)):
            found[frame.body.path].update(frame.body.places(one.of))
    loaded = {held for frame, one in loads for value in _given(one) for held in machine.store.of(frame.base + value)}
    takes: dict[str, set[At]] = defaultdict(set)
    for frame, one in calls:
        if not TAKES.isdisjoint(names[frame, one.of]) and loaded & set(machine.store.of(frame.base + one.to)):
            takes[frame.body.path].update(frame.body.places(one.of))
    return found, takes


def names_of(frame: Frame, call: Call, machine: Interpreter) -> Iterator[str]:
    """The dotted names of what ``call`` may call outside of the tree."""
    for one in machine.store.of(frame.base + call.of):
        if one.kind is Kind.EXTERN:
            yield canonical(one.data) or one.data


def _given(call: Call) -> tuple[int, ...]:
    return (*call.args, *(value for _, value in call.keywords))


def _holders(taken: set[Obj], machine: Interpreter) -> dict[Obj, set[Obj]]:
    """The states, and the containers that have some, with those that each has."""
    containers = {one for _, held in machine.store.filled() for one in held if one.kind is Kind.CONTAINER}
    found = {one: {one} for one in taken}
    known = 0
    while known < len(found):
        known = len(found)
        for one in containers - found.keys():
            inner = [found[held] for held in machine.store.of(machine.items.all(one)) if held in found]
            if inner:
                found[one] = set().union(*inner)
    return found


def _kept(frame: Frame, machine: Interpreter) -> Iterator[Obj]:
    """What becomes an attribute of an object."""
    for one in frame.body.every(SetAttribute):
        yield from machine.store.of(frame.base + one.value)


def _callers(bodies: set[Body], calls: list[tuple[Frame, Call]], machine: Interpreter) -> set[Body]:
    """``bodies``, and those that run them."""
    runs = [(frame.body, set(run_by(frame, one, machine))) for frame, one in calls]
    found, known = set(bodies), 0
    while known < len(found):
        known = len(found)
        found |= {body for body, called in runs if not called.isdisjoint(found)}
    return found


def _read_again(
    frame: Frame,
    loading: set[Body],
    holders: Mapping[Obj, Set[Obj]],
    names: dict[tuple[Frame, int], set[str]],
    machine: Interpreter,
) -> set[Obj]:
    """What ``frame`` gives to a call that loads it, and to one after that, or a round later, or takes a part of."""
    found: set[Obj] = set()
    loaded: set[Obj] = set()
    for place, one in enumerate(frame.body.operations):
        if isinstance(one, GetItem):
            found.update(
                held for held in machine.store.of(frame.base + one.of) if held in loaded & holders.get(held, set())
            )
        if not isinstance(one, Call) or any(table("functions").get(name) == "nothing" for name in names[frame, one.of]):
            continue
        held = {each for value in _given(one) for each in machine.store.of(frame.base + value) if each in holders}
        found.update(state for one_held in held for state in holders[one_held] if state in loaded)
        if not loading.isdisjoint(run_by(frame, one, machine)) or not READS.isdisjoint(names[frame, one.of]):
            loaded.update(held, *(holders[each] for each in held))
            values = {value for value in _given(one) if held.intersection(machine.store.of(frame.base + value))}
            if any(
                place in loop and not values & _made_in(frame.body, loop.begin, loop.end) for loop in frame.body.loops
            ):
                found |= held
    return found


def _made_in(body: Body, begin: int, end: int) -> set[int]:
    return {getattr(one, "to", -1) for one in body.operations[begin:end]}
