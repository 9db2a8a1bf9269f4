"""Where a file reads the parameters of a model, or clears their gradients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

import libcst as cst

from fsdp_rules.file.expressions import asked, attribute_of, last_name, names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.parameters import NAMES
from fsdp_rules.model.sharded import sharded, sharded_part
from fsdp_rules.model.wrapping import PASSING, model_of_parameters
from fsdp_rules.project.entered import LOOKS
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.value_facts import ALIKE

#: What gets and sets states works on shards, whatever ran before, and so do the helpers.
STATES = ("torch.distributed.checkpoint.state_dict.", "fsdp_compat.")
#: Methods and functions that change the tensors that they are called on, or given first; one fills its second.
FILLS = "vector_to_parameters"
IN_PLACE = re.compile(rf"[^_]_$|^{FILLS}$")


def parameter_reads(file: File) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression, bool]]:
    """What reads the parameters of a model, the model, and whether it clears gradients; in the order of the text."""
    found: list[tuple[cst.CSTNode, cst.BaseExpression, bool]] = []
    for loop in file.nodes(cst.For):
        for iterated in _iterated(loop):
            model = model_of_parameters(iterated, file)
            if model is not None and not isinstance(loop.iter, cst.Name) and not known_as("alike", loop.iter, file):
                found.append((loop, model, _clears(loop, file)))
    for call in file.nodes(cst.Call):
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value == "zero_grad":
            found.append((call, func.value, True))
            continue
        for argument in call.args:
            model = _passed(argument.value, func, file)
            if model is None or _is_plain(func) or (file.resolved(func) or "").startswith(STATES):
                continue
            if not known_as("alike", _source(argument.value), file):
                found.append((call, model, False))
                break
    known: set[cst.CSTNode | None] = {place for place, _, _ in found}
    for call in file.nodes(cst.Call):
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value in ("parameters", "named_parameters"):
            around = list(takewhile(lambda one: not isinstance(one, cst.BaseStatement), file.ancestors(call)))
            outer = file.parent(around[-1] if around else call)
            spoken = known.isdisjoint((*around, outer)) and not known_as("alike", call, file)
            if spoken and not any(_passes_on_less(one, file) for one in around):
                found.append((call, func.value, False))
    found += [*_named_parameters(file)]
    return iter(sorted(found, key=lambda entry: file.span(entry[0])))


def _named_parameters(file: File) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression, bool]]:
    """Every ``model.head.weight`` whose values are read or changed in place, or whose gradient is cleared."""
    asking = (node for node in file.nodes(cst.Call) if asked(node) is not None)
    for node in (*file.nodes(cst.Attribute), *asking):
        owner = next((found for name in sorted(NAMES) if (found := attribute_of(node, name)) is not None), None)
        if owner is None or sharded_part(owner, file) is Certainty.NO:
            continue
        parent = file.parent(node)
        if isinstance(parent, cst.Attribute) and parent.attr.value == "grad":
            if is_cleared(parent, file):
                yield parent, owner, True
            continue
        is_asked = isinstance(parent, cst.Attribute) and parent.attr.value in {*ALIKE, "requires_grad_"}
        if not is_asked and not isinstance(parent, cst.AssignTarget | cst.Comparison | cst.ComparisonTarget | cst.Del):
            yield node, owner, False


def is_cleared(gradient: cst.Attribute, file: File) -> bool:
    """Whether ``gradient``, as in ``p.grad = None`` and ``p.grad.zero_()``, is removed or emptied."""
    parent = file.parent(gradient)
    if isinstance(parent, cst.AssignTarget | cst.Del):
        return True
    return isinstance(parent, cst.Attribute) and parent.attr.value in ("zero_", "detach_")


def changes_in_place(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node``, a parameter or a call that is given some, changes the parameter, or what it is called on does.

    What a method of another tensor is given, as in ``average.copy_(parameter)``, is only read.
    """
    if isinstance(node, cst.Call) and node.args and IN_PLACE.search(last_name(node.func)):
        fills = last_name(node.func) == FILLS or not (file.resolved(node.func) or "").startswith("torch.")
        return fills or model_of_parameters(node.args[0].value, file) is not None
    current: cst.CSTNode = node
    while True:
        parent = file.parent(current)
        around = file.parent(parent) if parent is not None else None
        if isinstance(parent, cst.Attribute) and parent.value is current:
            called = isinstance(around, cst.Call) and around.func is parent
            if called and IN_PLACE.search(parent.attr.value):
                return True
            current = around if called and around is not None else parent
        elif isinstance(parent, cst.Subscript) and parent.value is current:
            current = parent
        elif isinstance(parent, cst.Arg) and isinstance(around, cst.Call):
            if not (isinstance(around.func, cst.Name) and around.func.value in {*PASSING, "next"}):
                fills = (file.resolved(around.func) or "").startswith("torch.") and around.args[0] is parent
                return fills and IN_PLACE.search(last_name(around.func)) is not None
            current = around
        else:
            return isinstance(parent, cst.AssignTarget) or (
                isinstance(parent, cst.AugAssign) and parent.target is current
            )


def _source(given: cst.BaseExpression) -> cst.BaseExpression:
    """What a comprehension runs over; anything else is that itself."""
    return given.for_in.iter if isinstance(given, cst.ListComp | cst.GeneratorExp | cst.SetComp) else given


def _iterated(loop: cst.For) -> list[cst.BaseExpression]:
    """What ``loop`` runs over, each part of a ``zip`` for itself."""
    call = loop.iter
    if isinstance(call, cst.Call) and isinstance(call.func, cst.Name) and call.func.value == "zip":
        return [argument.value for argument in call.args]
    return [call]


def _passes_on_less(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node``, around what gives parameters, works on shards or clips."""
    func = node.func if isinstance(node, cst.Call) else None
    return func is not None and (_clips(func) or (file.resolved(func) or "").startswith(STATES))


def _is_plain(func: cst.BaseExpression) -> bool:
    """Whether what is called only passes on what it is given, clips, or runs the backward itself."""
    if isinstance(func, cst.Name):
        return func.value in PASSING or func.value in ("isinstance", "getattr", "hasattr", "print", "len", "type", "id")
    return _clips(func) or last_name(func).endswith("scaler")


def _clips(func: cst.BaseExpression) -> bool:
    return "clip" in last_name(func)


def _passed(node: cst.BaseExpression, func: cst.BaseExpression, file: File) -> cst.BaseExpression | None:
    """The model whose parameters ``node`` passes on, or that is passed on itself."""
    # What FSDP1's own functions do with a model is for the rules about them.
    if dotted(node) is not None and LOOKS.search(dotted(func) or "") and file.fsdp1(func) is None:
        return node if sharded(node, file).certainty is not Certainty.NO else None
    return model_of_parameters(node, file)


def _clears(loop: cst.For, file: File) -> bool:
    """Whether ``loop`` clears the gradients of the parameters that it runs over."""
    names = {entry.value for entry in names_in(loop.target)}
    for call in file.inside(loop.body, cst.Call):
        given = [file.code(argument.value) for argument in call.args]
        if last_name(call.func) == "setattr" and given[:1] and given[0] in names and given[1].strip("'\"") == "grad":
            return True
    for node in file.inside(loop.body, cst.Attribute):
        if node.attr.value != "grad" or not isinstance(node.value, cst.Name) or node.value.value not in names:
            continue
        if is_cleared(node, file):
            return True
    return False
