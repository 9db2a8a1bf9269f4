"""Functions of the tree that gather full parameters, and those that only run where these are gathered."""

from __future__ import annotations

from collections import defaultdict

from fsdp_rules.ir.operations import At, Call, Entered
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.interpreter import Interpreter


def gathering(machine: Interpreter) -> dict[str, set[At]]:
    """The places of what `with` statements enter, where that surely gathers full parameters by a function's yield."""
    found: dict[str, set[At]] = defaultdict(set)
    others: dict[str, set[At]] = defaultdict(set)
    for frame in machine.frames:
        called = {one.to: one.of for one in frame.body.every(Call)}
        for one in frame.body.every(Entered):
            if one.of in called:
                functions = machine.store.of(frame.base + called[one.of])
                places = found if functions and all(map(_gathers, functions)) else others
                places[frame.body.path].update(frame.body.places(one.of))
    return {path: places - others[path] for path, places in found.items()}


def only_gathered(machine: Interpreter) -> dict[str, set[At]]:
    """The functions all of whose calls find full parameters."""
    found: dict[str, set[At]] = defaultdict(set)
    others: dict[str, set[At]] = defaultdict(set)
    for frame in machine.frames:
        (found if frame.is_gathered else others)[frame.body.path].add(frame.body.at)
    return {path: places - others[path] for path, places in found.items()}


def _gathers(one: Obj) -> bool:
    inner = one.data[1] if one.kind is Kind.BOUND else one
    return inner.kind is Kind.FUNCTION and inner.data.body.gathers
