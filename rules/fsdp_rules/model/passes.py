"""Which pass of a model may have run last before a place: FSDP2's root stays gathered after a forward."""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

import libcst as cst

from fsdp_rules.file.ancestors import branches
from fsdp_rules.file.expressions import names_in, root_of
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.once import once
from fsdp_rules.file.reads import is_read
from fsdp_rules.model.arms import both_arms, excludes, is_conditional
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrapping import SHARDING, may_wrap
from fsdp_rules.project.entered import EVALUATES, Pass, is_backward
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.surely_run import SurelyRun

__all__ = [
    "Event",
    "Pass",
    "awaits_backward",
    "backwards_after",
    "begins_backward",
    "end_of",
    "excludes",
    "forwards_before",
    "is_given_loss",
    "kind_of",
    "last_passes",
    "may_run_between",
    "pass_ends",
    "passes_in",
]

#: Names that only look like such functions: what is registered runs later.
NO_PASS = re.compile(r"^(eval$|register_)")
#: Functions that are given a model and do not run it, by what people call them.
RUNS_NOTHING = re.compile(
    r"clip|save|load|state|print|log|wrap|optim|sched|param|count|ema|average|checkpoint|compile|shard|DistributedData|"
    r"^(build|create|get|id|init|isinstance|getattr|hasattr|setattr|len|make|prepare|register|set|setup|str|type|unwrap)(_|$)",
    re.IGNORECASE,
)


class Event(NamedTuple):
    """A call, what may be the last pass after it, and whether it may run none."""

    call: cst.Call
    passes: frozenset[Pass]
    may_run_none: bool


def last_passes(
    place: cst.CSTNode, file: File, made_here: bool = False, given: cst.BaseExpression | None = None
) -> frozenset[Pass]:
    """Everything that may have been the last pass when ``place`` runs, loops followed around once.

    ``made_here``: the function wraps the model itself, so that no pass before its call is one of this model. ``given``:
    the model, where a call gives it, which then makes none.
    """
    owner = file.function(place) or file.module
    events = _events_of_given(owner, given, file) if given is not None else passes_in(owner, file)
    around = list(file.ancestors(place))
    loops = [entry for entry in around if isinstance(entry, cst.For | cst.While)]
    if owner is not file.module:
        loops = [entry for entry in loops if owner in set(file.ancestors(entry))]
    start = start_of(file.statement(place), file)
    found: set[Pass] = set()
    for loop in loops:
        first, last = start_of(loop, file), end_of(loop, file)
        inside = [entry for entry in events if first <= end_of(entry[0], file) <= last]
        if _collect([entry for entry in inside if end_of(entry[0], file) <= start], place, file, found):
            return frozenset(found)
        # The rest of the loop's body ran in the round before, whatever stands above the loop ran before the first.
        _collect([entry for entry in inside if start_of(entry[0], file) > start], place, file, found)
        start = first
    ends = pass_ends(owner, file) if given is None else [end_of(entry[0], file) for entry in events]
    if not _collect(events[: bisect_right(ends, start)], place, file, found):
        found.add(Pass.UNKNOWN)
        if not made_here and file.project.entered.after_forward(file.path, file.scope(place)):
            found.add(Pass.FORWARD)
    return frozenset(found)


def may_follow_forward(place: cst.CSTNode, file: File, made_here: bool = False) -> bool:
    """Whether a forward may have been the last pass when ``place`` runs, or what ran after one is not known."""
    passes = last_passes(place, file, made_here)
    if Pass.FORWARD in passes or Pass.UNKNOWN not in passes:
        return Pass.FORWARD in passes
    start = start_of(file.statement(place), file)
    events = passes_in(file.function(place) or file.module, file)
    return any(Pass.FORWARD in event.passes and end_of(event.call, file) <= start for event in events)


def may_run_between(first: cst.CSTNode, second: cst.CSTNode, file: File) -> bool:
    """Whether a pass may run after ``first`` and before ``second``, both of one block."""
    start, end = end_of(first, file), start_of(file.statement(second), file)
    events = passes_in(file.function(second) or file.module, file)
    return any(start < end_of(event.call, file) <= end for event in events)


def awaits_backward(place: cst.CSTNode, file: File) -> cst.Call | None:
    """The forward above ``place`` whose backward is the next pass; None where another one is, or none is seen."""
    owner, statement = file.function(place) or file.module, file.statement(place)
    events, ends = passes_in(owner, file), pass_ends(owner, file)
    above = reversed(events[: bisect_right(ends, start_of(statement, file))])
    below = iter(events[bisect_right(ends, end_of(statement, file)) :])
    before = next((event for event in above if not excludes(event.call, place, file)), None)
    after = next((event for event in below if not excludes(event.call, place, file)), None)
    if before is None or after is None or Pass.FORWARD not in before.passes:
        return None
    return before.call if begins_backward(after.call, file) else None


def begins_backward(call: cst.Call, file: File) -> bool:
    """Whether the first pass that ``call`` runs is a backward."""
    if kind_of(call, file) is Pass.BACKWARD:
        return True
    text = dotted(call.func)
    return text is not None and Pass.BACKWARD in file.project.entered.begins(file.path, file.scope(call), text)


def forwards_before(place: cst.CSTNode, file: File) -> list[cst.Call]:
    """The calls of sharded models in ``place`` and above it in its function, since the last backward there."""
    found: list[cst.Call] = []
    for call, passes, _ in passes_in(file.function(place) or file.module, file):
        if call is not place and end_of(call, file) <= end_of(place, file) and not excludes(call, place, file):
            found = [] if Pass.BACKWARD in passes else [*found, call]
    return [call for call in found if sharded(call.func, file).certainty is not Certainty.NO]


def backwards_after(place: cst.CSTNode, file: File) -> list[cst.Call]:
    """The first backward below ``place`` in its function, and those that run in its stead."""
    events = [event for event in passes_in(file.function(place) or file.module, file) if Pass.BACKWARD in event.passes]
    below = [event.call for event in events if end_of(event.call, file) > end_of(place, file)]
    found = [call for call in below if not excludes(call, place, file)]
    return [call for call in found if call is found[0] or excludes(call, found[0], file)]


def is_given_loss(call: cst.Call, file: File) -> bool:
    """Whether ``call`` is given what a forward above it gave, or what came of that: it runs the backward itself."""
    owner = file.function(call) or file.module
    forwards = {event.call for event in passes_in(owner, file) if Pass.FORWARD in event.passes}
    results: set[str] = set()
    for made in file.inside(owner, cst.Assign):
        if start_of(made, file) < start_of(call, file) and _is_result(made.value, forwards, results, file):
            results |= {name.value for target in made.targets for name in names_in(target.target)}
    return any(_is_result(argument.value, forwards, results, file) for argument in call.args)


def _is_result(node: cst.CSTNode, forwards: set[cst.Call], names: set[str], file: File) -> bool:
    if not forwards.isdisjoint(file.inside(node, cst.Call)):
        return True
    return any(name.value in names and is_read(name, file.layout) for name in file.inside(node, cst.Name))


@once
def passes_in(owner: cst.CSTNode, file: File) -> list[Event]:
    """The passes in the body of a function, or of the module, in the order in which they have happened."""
    events = [
        Event(node, *kinds)
        for node in file.inside(owner, cst.Call)
        if (file.function(node) or file.module) is owner and (kinds := _kinds(node, file)) is not None
    ]
    # A call has happened where its text ends: ``model(x).backward()`` ends with the backward.
    return sorted(events, key=lambda entry: end_of(entry[0], file))


@once
def pass_ends(owner: cst.CSTNode, file: File) -> list[tuple[int, int]]:
    """Where the calls of those passes end, in the same order."""
    return [end_of(event.call, file) for event in passes_in(owner, file)]


def _events_of_given(owner: cst.CSTNode, model: cst.BaseExpression, file: File) -> list[Event]:
    """The passes in the body of a function where ``model``, of a call, is one object each time that it is written."""
    text, made = file.code(model), file.code(root_of(model))
    events = [event for event in passes_in(owner, file) if file.code(event.call) != made]
    for node in file.inside(owner, cst.Call):
        if (file.function(node) or file.module) is not owner:
            continue
        called = file.code(node.func)
        name = called.removeprefix(f"{text}.")
        if called == text or (name != called and EVALUATES.search(name) and not NO_PASS.search(name)):
            events.append(Event(node, frozenset({Pass.FORWARD}), False))
    return sorted(events, key=lambda entry: end_of(entry[0], file))


def _collect(events: list[Event], place: cst.CSTNode, file: File, found: set[Pass]) -> bool:
    """Add what may be the last of ``events`` before ``place``; whether one of them surely ran."""
    around = set(file.ancestors(place))
    ran = SurelyRun[tuple[cst.CSTNode, cst.CSTNode | None]](lambda arm: ((arm[0], one) for one in both_arms(arm[0])))
    for node, passes, may_run_none in reversed(events):
        if excludes(node, place, file):
            continue
        own = tuple(one for one in branches(node, file) if one[0] not in around and is_conditional(one[0], file))
        if ran.follows(own):
            continue
        found |= passes
        if not may_run_none and ran.add(own):
            return True
    return False


def _kinds(call: cst.Call, file: File) -> tuple[frozenset[Pass], bool] | None:
    """What may be the last pass after ``call``, and whether it may run none; None where it runs none."""
    kind = kind_of(call, file)
    known = None if kind is None else (frozenset({kind}), False)
    # hydra.main(...) calls no function of the tree that is called main.
    text = None if isinstance(file.parent(call), cst.Decorator) else dotted(call.func)
    if text is None or kind in (Pass.BACKWARD, Pass.RESHARD) or sharded(call.func, file).certainty is not Certainty.NO:
        return known
    # What the functions of the project do is known; by its name alone another one runs a forward.
    left = file.project.entered.leaves(file.path, file.scope(call), text)
    if not left - {Pass.UNKNOWN}:
        return None if left and kind is Pass.UNKNOWN else known
    return left - {Pass.UNKNOWN}, Pass.UNKNOWN in left


def kind_of(call: cst.Call, file: File) -> Pass | None:
    func = call.func
    if may_wrap(call, file) or file.resolved(func) in SHARDING:
        return Pass.RESHARD
    name = func.attr.value if isinstance(func, cst.Attribute) else func.value if isinstance(func, cst.Name) else ""
    if is_backward(name):
        return Pass.BACKWARD
    if name == "reshard":
        return Pass.RESHARD
    # The helpers that a first run writes run no pass.
    if (file.resolved(func) or "").startswith("fsdp_compat."):
        return None
    if not isinstance(func, cst.Call) and sharded(func, file).certainty is not Certainty.NO:
        return Pass.FORWARD
    if EVALUATES.search(name) and not NO_PASS.search(name):
        receiver = func.value if isinstance(func, cst.Attribute) else None
        given = [argument.value for argument in call.args]
        passed = [*given, *([receiver] if receiver is not None else [])]
        own = receiver is not None and file.code(receiver) == "self"
        if own or any(sharded(entry, file).certainty is not Certainty.NO for entry in passed):
            return Pass.FORWARD
        return None
    # What another function does with the model, a forward alone or a whole step, is not known here.
    given = [argument.value for argument in call.args]
    if name and not RUNS_NOTHING.search(name) and any(_is_surely_sharded(entry, file) for entry in given):
        return Pass.UNKNOWN
    return None


def _is_surely_sharded(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is surely a sharded model, or has nothing but such, as what is given with a star."""
    if not isinstance(node, cst.Name | cst.Attribute):
        return False
    return Certainty.YES in (sharded(node, file).certainty, value_of(node, file).models)


def start_of(node: cst.CSTNode, file: File) -> tuple[int, int]:
    span = file.span(node)
    return span.line, span.column


def end_of(node: cst.CSTNode, file: File) -> tuple[int, int]:
    span = file.span(node)
    return span.end_line, span.end_column
