"""Which function each call runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from fsdp_rules.fsdp1.methods import COMMON
from fsdp_rules.ir.operations import At, Call
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Arguments
from fsdp_rules.values.interpreter import Interpreter

#: What is said of functions of the tree.
OWN = "its own"
_MODELS = frozenset({Kind.MODEL, Kind.PART})


def called(machine: Interpreter) -> dict[str, dict[At, str]]:
    """What each call runs, by the place of what is called; "" where it may be several.

    The dotted name of a function of torch, or ``OWN`` for functions of the tree.
    """
    found: dict[str, dict[At, str]] = defaultdict(dict)
    for frame in machine.frames:
        callees = {one.of for one in frame.body.every(Call)}
        for at, value in frame.body.uses:
            if value in callees:
                held = machine.store.of(frame.base + value)
                names = {_name(one, machine) for one in held if not _is_covered(one, held)}
                name = names.pop() if len(names) == 1 else ""
                same = found[frame.body.path].setdefault(at, name)
                found[frame.body.path][at] = name if name == same else ""
    return found


def mixed(machine: Interpreter, is_other: Callable[[Obj], bool]) -> dict[str, set[At]]:
    """The places of what is called that is a method of models, and in another run of an object that surely is none."""
    found: dict[str, set[At]] = defaultdict(set)
    for frame in machine.frames:
        callees = {one.of for one in frame.body.every(Call)}
        for at, value in frame.body.uses:
            if value in callees:
                held = machine.store.of(frame.base + value)
                owners = {one.data[0] for one in held if one.kind in (Kind.METHOD, Kind.BOUND)}
                if any(one.kind in _MODELS for one in owners) and any(
                    one.kind is not Kind.OTHER_WRAPPER and is_other(one) for one in owners
                ):
                    found[frame.body.path].add(at)
    return found


def _is_covered(one: Obj, held: Collection[Obj]) -> bool:
    """Whether ``one`` is what an object of the tree would have by that name, had its class no function there.

    A method of FSDP1's class, or a part of a model.
    """
    if one.kind is Kind.PART:
        return any(each.kind is Kind.BOUND for each in held)
    if one.kind is not Kind.METHOD or one.data[0].kind is not Kind.INSTANCE or one.data[1] not in COMMON:
        return False
    return any(each.kind is Kind.FUNCTION for each in held)


def _name(one: Obj, machine: Interpreter) -> str:
    return OWN if one.kind in (Kind.FUNCTION, Kind.BOUND) else _outer_name(one, machine)


def _outer_name(one: Obj, machine: Interpreter) -> str:
    """The dotted name of a function of torch, also behind a partial that binds nothing."""
    while one.kind is Kind.PARTIAL and one.data[1] == Arguments():
        held = machine.store.of(one.data[0])
        if len(held) != 1:
            return ""
        one = next(iter(held))
    return one.data if one.kind is Kind.EXTERN and one.data.startswith("torch.") else ""
