"""Changes in place of a model's parameters, and whose parameters they are."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fsdp_rules.file.expressions import last_name, names_in
from fsdp_rules.file.file import File
from fsdp_rules.model.containing import containing
from fsdp_rules.model.given_by_call import FOREIGN, is_given_by_call
from fsdp_rules.model.parameter_reads import changes_in_place
from fsdp_rules.model.sharded import Sharded, sharded
from fsdp_rules.model.wrapping import model_of_parameters
from fsdp_rules.project.optimizers import OPTIMIZER
from fsdp_rules.project.project import Certainty


def whole_of(part: cst.BaseExpression, clears: bool, file: File) -> cst.BaseExpression:
    """The sharded model that ``part`` is a part of, ``part`` itself where none is known."""
    for node in (part, *containing(part, file)):
        held = held_of(node, file).certainty
        if held is not Certainty.NO and not (clears and _is_itself(node, held)):
            return node
        # An optimizer that an object has beside its model is none of the model's parts.
        if clears and (FOREIGN.search(last_name(node)) or OPTIMIZER.search(last_name(node))):
            return part
    return part


def _is_itself(node: cst.BaseExpression, held: Certainty) -> bool:
    """Whether ``node`` is an object that is a model by the name of its method alone."""
    return isinstance(node, cst.Name) and node.value in ("self", "cls") and held is not Certainty.YES


def held_of(model: cst.BaseExpression, file: File) -> Sharded:
    """Whether ``model`` is a sharded one, or may be, since it is what a function gives."""
    found = sharded(model, file)
    return replace(found, certainty=Certainty.MAYBE) if is_given(model, file) else found


def is_given(model: cst.BaseExpression, file: File) -> bool:
    """Whether ``model`` is what a call gives, of which nothing else is known."""
    return is_given_by_call(model, file) and not sharded(model, file).is_excluded


def writes(place: cst.CSTNode, model: cst.BaseExpression, file: File) -> bool:
    """Whether ``place`` is a loop that changes in place the parameters that it runs over, or leads to such changes."""
    loop = place if isinstance(place, cst.For) else None
    if isinstance(place, cst.Attribute):
        return place.attr.value != "grad" and changes_in_place(place, file)
    if loop is None and changes_in_place(place, file):
        return True
    target = None if loop is None else _own_target(loop, model, file)
    names = set() if target is None else {entry.value for entry in names_in(target)}
    whole = file.function(place) or file.statement(place) if loop is None else loop.body
    for call in file.inside(whole, cst.Call):
        func = call.func
        if not isinstance(func, cst.Attribute) or not func.attr.value.endswith("_") or func.attr.value[0] == "_":
            continue
        changed = func.value
        is_data = isinstance(changed, cst.Attribute) and changed.attr.value == "data"
        if isinstance(changed, cst.Attribute) and is_data:
            changed = changed.value
        if func.attr.value == "requires_grad_":
            continue
        if loop is not None and isinstance(changed, cst.Name) and changed.value in names:
            return True
        if loop is None and (is_data or isinstance(changed, cst.Subscript)):
            return True
    return False


def _own_target(loop: cst.For, model: cst.BaseExpression, file: File) -> cst.CSTNode:
    """What of the target of ``loop`` runs over the model's parameters: of ``zip(saved, model.parameters())`` half."""
    target, call = loop.target, loop.iter
    if zips(loop) and isinstance(call, cst.Call) and isinstance(target, cst.Tuple):
        found = [model_of_parameters(argument.value, file) for argument in call.args]
        mine = [one is not None and file.code(whole_of(one, False, file)) == file.code(model) for one in found]
        if len(mine) == len(target.elements) and mine.count(True) == 1:
            return target.elements[mine.index(True)].value
    return target


def zips(place: cst.CSTNode) -> bool:
    """Whether ``place`` goes through the parameters of two models, as averages and updates of teachers do."""
    return isinstance(place, cst.For) and (
        isinstance(place.iter, cst.Call) and isinstance(place.iter.func, cst.Name) and place.iter.func.value == "zip"
    )
