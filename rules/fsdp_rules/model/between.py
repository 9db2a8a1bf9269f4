"""Whether a place runs between a forward of a sharded model and the backward of what that forward has given."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.once import once
from fsdp_rules.file.reads import is_read
from fsdp_rules.model.passes import (
    Event,
    begins_backward,
    end_of,
    excludes,
    kind_of,
    last_passes,
    pass_ends,
    passes_in,
)
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.entered import Pass
from fsdp_rules.project.project import Certainty

#: What gives a tensor, or a number, that no backward follows further.
CUTS = frozenset({"detach", "item", "tolist", "detach_", "numpy"})


def awaited_forwards(place: cst.CSTNode, file: File) -> list[cst.Call] | None:
    """The forwards that ran before ``place`` and whose backward comes after it, as the code says; None where none did.

    Empty where callers of the function around ``place`` run them.
    """
    owner, start = file.function(place) or file.module, end_of(file.statement(place), file)
    events = passes_in(owner, file)
    number = bisect_right(pass_ends(owner, file), start)
    entered, scope = file.project.entered, file.scope(place)
    backwards = _backwards(owner, file)
    rest = backwards[bisect_right(backwards, start, key=lambda one: end_of(one, file)) :]
    below = next((call for call in rest if not excludes(call, place, file)), None)
    if below is None:
        if not entered.before_backward(file.path, scope):
            return None
        above = _since_backward(events[:number], place, file)
        return above or ([] if entered.after_forward(file.path, scope) else None)
    if kind_of(below, file) is not Pass.BACKWARD:
        runs = begins_backward(below, file) and Pass.FORWARD in last_passes(place, file)
        return _since_backward(events[:number], place, file) if runs else None
    awaited = _read_by_backwards(owner, file).get(below, frozenset())
    ran = [one for one in awaited if one is not owner and _runs_before(one, place, start, file)]
    if ran:
        return sorted((one for one in ran if isinstance(one, cst.Call)), key=lambda one: end_of(one, file))
    # What is handed in, or lies in the object, may be what a caller's forward gave.
    return [] if owner in awaited and entered.after_forward(file.path, scope) else None


@once
def _backwards(owner: cst.CSTNode, file: File) -> list[cst.Call]:
    """The calls in a function that may run a backward, in order."""
    return [event.call for event in passes_in(owner, file) if Pass.BACKWARD in event.passes]


def _since_backward(events: list[Event], place: cst.CSTNode, file: File) -> list[cst.Call]:
    """The forwards among ``events``, all above ``place``, since the last that is a backward alone."""
    found: list[cst.Call] = []
    for event in reversed(events):
        if event.call is place or excludes(event.call, place, file):
            continue
        if event.passes == {Pass.BACKWARD}:
            break
        if Pass.FORWARD in event.passes:
            found.append(event.call)
    return found[::-1]


def _runs_before(call: cst.CSTNode, place: cst.CSTNode, start: tuple[int, int], file: File) -> bool:
    return call is not place and end_of(call, file) <= start and not excludes(call, place, file)


def forwards_of(calls: list[cst.Call], file: File) -> list[cst.BaseExpression]:
    """The sharded models that ``calls`` run by themselves; what other functions run is left out."""
    return [call.func for call in calls if sharded(call.func, file).certainty is not Certainty.NO]


def is_freed(model: cst.BaseExpression, place: cst.CSTNode, file: File) -> bool:
    """Whether the function around ``place`` surely runs a backward of ``model`` itself after its last forward there."""
    owner, start, text = file.function(place) or file.module, end_of(file.statement(place), file), file.code(model)
    events = [event for event in passes_in(owner, file) if end_of(event.call, file) <= start]
    ran = [event.call for event in events if Pass.FORWARD in event.passes and file.code(event.call.func) == text]
    if not ran:
        return False
    read, around = _read_by_backwards(owner, file), set(file.ancestors(place))
    later = [event.call for event in events if end_of(event.call, file) > end_of(ran[-1], file)]
    backwards = [
        call for call in later if all(one in around for one in file.ancestors(call) if isinstance(one, cst.If))
    ]
    return any(ran[-1] in read.get(call, ()) or ran[-1] in file.inside(call, cst.Call) for call in backwards)


@once
def _read_by_backwards(owner: cst.CSTNode, file: File) -> dict[cst.Call, frozenset[cst.CSTNode]]:
    """For each backward in a function the forwards that gave what it reads; ``owner`` stands for those of callers."""
    events = passes_in(owner, file)
    forwards = [event.call for event in events if Pass.FORWARD in event.passes]
    backwards = [event.call for event in events if kind_of(event.call, file) is Pass.BACKWARD]
    started: dict[tuple[int, int], list[tuple[cst.Call, frozenset[str]]]] = defaultdict(list)
    for call in forwards:
        statement = file.statement(call)
        if not _is_cut(call, statement, file):
            started[end_of(statement, file)].append((call, _given_by(call, statement, file)))
    steps: list[cst.Assign | cst.AugAssign | cst.Call] = [*file.inside(owner, cst.Assign), *backwards]
    steps += file.inside(owner, cst.AugAssign)
    waiting = sorted(started, reverse=True)
    held: dict[str, frozenset[cst.CSTNode]] = {name: frozenset({owner}) for name in _handed(owner, file)}
    found: dict[cst.Call, frozenset[cst.CSTNode]] = {}
    for step in sorted(steps, key=lambda one: end_of(one, file)):
        while waiting and waiting[-1] < end_of(step, file):
            _begin(started[waiting.pop()], held)
        if isinstance(step, cst.Call):
            read = {*_operands(step, file)}
            found[step] = frozenset().union(*(held.get(name, ()) for name in read))
            # A backward frees the graph that it has gone through.
            for name in read:
                held.pop(name, None)
            continue
        uncut = not _is_cut(None, step, file)
        flows = frozenset().union(*(held.get(name, ()) for name in _texts(step.value, file)) if uncut else ())
        for name in _targets(step, file):
            held[name] = flows | held.get(name, frozenset()) if isinstance(step, cst.AugAssign) else flows
    return found


def _begin(started: list[tuple[cst.Call, frozenset[str]]], held: dict[str, frozenset[cst.CSTNode]]) -> None:
    for call, names in started:
        for name in names:
            held[name] = held.get(name, frozenset()) | {call}


def _given_by(call: cst.Call, statement: cst.CSTNode, file: File) -> frozenset[str]:
    """The names that ``call`` gives a result; a method such as ``self.forward()`` leaves it in the object."""
    found = _targets(statement, file)
    return found if found or not file.code(call.func).startswith("self.") else frozenset(_stored(call, file))


def _operands(call: cst.Call, file: File) -> Iterator[str]:
    """The names in what the backward ``call`` is called on, and given."""
    receiver = [call.func.value] if isinstance(call.func, cst.Attribute) else []
    for one in (*receiver, *(argument.value for argument in call.args)):
        yield from _texts(one, file)


def _targets(statement: cst.CSTNode, file: File) -> frozenset[str]:
    """The dotted names that ``statement`` gives values."""
    if isinstance(statement, cst.AugAssign):
        return frozenset({file.code(statement.target)})
    if not isinstance(statement, cst.Assign):
        return frozenset()
    found: set[str] = set()
    for target in statement.targets:
        parts = (
            [one.value for one in target.target.elements]
            if isinstance(target.target, cst.Tuple | cst.List)
            else [target.target]
        )
        found |= {file.code(one) for one in parts if dotted(one) is not None}
    return frozenset(found)


def _texts(node: cst.CSTNode, file: File) -> Iterator[str]:
    """Every dotted name that ``node`` reads, without what it cuts off from the graph."""
    names: list[cst.Name | cst.Attribute] = [*file.inside(node, cst.Name)]
    for one in (*names, *file.inside(node, cst.Attribute)):
        text = dotted(one)
        if text is not None and is_read(one, file.layout) and not _is_cut(one, node, file):
            yield text


def _is_cut(node: cst.CSTNode | None, around: cst.CSTNode, file: File) -> bool:
    """Whether ``around`` takes ``node``, or all of what it makes, off the graph."""
    start = node if node is not None else around
    for one in (start, *file.ancestors(start)):
        if isinstance(one, cst.Attribute) and one.attr.value in CUTS:
            return True
        if one is around:
            break
    for one in file.ancestors(around):
        if isinstance(one, cst.With) and any("no_grad" in file.code(item) for item in one.items):
            return True
    return False


def _stored(call: cst.Call, file: File) -> Iterator[str]:
    """What the method that ``call`` runs writes to its object."""
    name = last_name(call.func)
    for function in file.nodes(cst.FunctionDef):
        if function.name.value == name:
            for made in file.inside(function, cst.Assign):
                yield from (text for text in _targets(made, file) if text.startswith("self."))


def _handed(owner: cst.CSTNode, file: File) -> frozenset[str]:
    """What a function is given by its callers."""
    if not isinstance(owner, cst.FunctionDef):
        return frozenset()
    return frozenset(one.name.value for one in file.inside(owner.params, cst.Param) if one.name.value != "self")
