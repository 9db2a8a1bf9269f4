"""Whether a place runs between a forward of a sharded model and the backward of what that forward has given."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.reads import is_read
from fsdp_rules.model.passes import begins_backward, end_of, excludes, kind_of, last_passes, passes_in
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
    events = [event for event in passes_in(owner, file) if not excludes(event.call, place, file)]
    entered, scope = file.project.entered, file.scope(place)
    before = [event for event in events if end_of(event.call, file) <= start and event.call is not place]
    ran = [event.call for event in before if Pass.FORWARD in event.passes]
    last = max((end_of(event.call, file) for event in before if event.passes == {Pass.BACKWARD}), default=(0, 0))
    above = [call for call in ran if end_of(call, file) > last]
    below = next((one for one in events if end_of(one.call, file) > start and Pass.BACKWARD in one.passes), None)
    if below is None:
        if not entered.before_backward(file.path, scope):
            return None
        if above:
            return above
        return [] if entered.after_forward(file.path, scope) else None
    if kind_of(below.call, file) is not Pass.BACKWARD:
        runs = begins_backward(below.call, file) and Pass.FORWARD in last_passes(place, file)
        return above if runs else None
    read = set(_operands(below.call, file))
    awaited = [call for call in ran if read & _results_of(call, place, below.call, file)]
    if awaited:
        return awaited
    # What is handed in, or lies in the object, may be what a caller's forward gave.
    handed = _results(_handed(owner, file), owner, place, below.call, file)
    return [] if read & handed and entered.after_forward(file.path, scope) else None


def forwards_of(calls: list[cst.Call], file: File) -> list[cst.BaseExpression]:
    """The sharded models that ``calls`` run by themselves; what other functions run is left out."""
    return [call.func for call in calls if sharded(call.func, file).certainty is not Certainty.NO]


def _results_of(call: cst.Call, place: cst.CSTNode, end: cst.Call, file: File) -> frozenset[str]:
    """The names of what ``call`` has given, and of what is made of it up to ``end``."""
    statement = file.statement(call)
    if _is_cut(call, statement, file):
        return frozenset()
    found = _targets(statement, file)
    # A method such as ``self.forward()`` leaves what it computes in the object.
    if not found and file.code(call.func).startswith("self."):
        found = frozenset(_stored(call, file))
    return _results(found, statement, place, end, file)


def _results(
    names: frozenset[str], begin: cst.CSTNode, place: cst.CSTNode, end: cst.Call, file: File
) -> frozenset[str]:
    """``names``, and those that are made of them between ``begin`` and ``end``, as far as they still mean that."""
    found = set(names)
    owner = file.function(place) or file.module
    after = end_of(begin, file) if begin is not owner else (0, 0)
    backwards = [one.call for one in passes_in(owner, file) if kind_of(one.call, file) is Pass.BACKWARD]
    steps: list[cst.Assign | cst.AugAssign | cst.Call] = [*file.inside(owner, cst.Assign), *backwards]
    steps += file.inside(owner, cst.AugAssign)
    for step in sorted(steps, key=lambda one: end_of(one, file)):
        if not after < end_of(step, file) < end_of(end, file):
            continue
        if isinstance(step, cst.Call):
            # A backward frees the graph that it has gone through.
            found -= set(_operands(step, file))
        elif found & set(_texts(step.value, file)) and not _is_cut(None, step, file):
            found |= _targets(step, file)
        elif isinstance(step, cst.Assign):
            found -= _targets(step, file)
    return frozenset(found)


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
