"""Models that are frozen whole while a backward runs through them: FSDP1 keeps the gradients that they have by then."""

from __future__ import annotations

import re
from typing import NamedTuple

import libcst as cst

from fsdp_rules.file.expressions import last_name, literal_bool, names_in
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.model.containing import containing
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.kept_gradients import keeps_frozen
from fsdp_rules.model.passes import end_of, passes_in
from fsdp_rules.model.program_wraps import Wrap, carried_in, wraps_of
from fsdp_rules.model.sharded import sharded, sharded_owner, sharded_part
from fsdp_rules.model.wrapping import assignments, loops_around, may_wrap, model_of_parameter
from fsdp_rules.project.project import Certainty

#: Methods of models that change ``requires_grad`` of their parameters, by what people call them.
FREEZES = re.compile(r"(^|_)(un)?freeze(_|$)|^set_(requires_grad|trainable)(_|$)")


class Change(NamedTuple):
    """Where parameters of ``part`` are frozen or thawed, in a loop over them if it has one.

    ``model`` is the sharded model that they are of, or may be of.
    """

    place: cst.CSTNode
    part: cst.BaseExpression
    loop: cst.CSTNode | None
    model: cst.BaseExpression
    is_sure: bool


class KeptFrozen(NamedTuple):
    """How sure it is that FSDP1 keeps gradients of what is frozen whole at ``place``, and what wraps the model."""

    place: cst.CSTNode
    kept: Certainty
    wraps: list[Wrap]


def later_change(node: cst.CSTNode, file: File) -> Change | None:
    """What ``node`` freezes or thaws of a sharded model after a forward may have run; None where it does not."""
    found = _changed(node, file)
    if found is None:
        return None
    part, loop = found
    model = sharded_owner(part, file)
    is_sure = model is not None
    if model is None and sharded_part(part, file) is Certainty.MAYBE:
        around = (part, *containing(part, file))
        model = next((one for one in around if sharded(one, file).certainty is not Certainty.NO), part)
    return None if model is None or not _is_later(node, loop, file) else Change(node, part, loop, model, is_sure)


@once
def kept_frozen(module: cst.Module, file: File) -> list[KeptFrozen]:
    """Every place in the file that freezes a model, or a unit, whole, of which FSDP1 keeps the gradients."""
    nodes = (*file.inside(module, cst.AssignTarget), *file.inside(module, cst.Call))
    changes = (later_change(node, file) for node in nodes)
    return [kept for one in changes if one is not None and (kept := _kept(one, file)) is not None]


def has_kept_frozen(wrap: cst.Call, file: File) -> bool:
    """Whether ``wrap`` is to carry over that FSDP1 surely keeps gradients of what is frozen whole."""
    line = file.span(wrap).line
    sure = (one for one in kept_frozen(file.module, file) if one.kept is Certainty.YES)
    return any(line in {wrap.call.lineno for wrap in carried_in(one.wraps, file)} for one in sure)


def _kept(change: Change, file: File) -> KeptFrozen | None:
    """What FSDP1 keeps at ``change``.

    A unit whose parameters are all frozen has no gradient to add its old ones to as a backward runs through it. FSDP1
    has set these aside for that, and they come back in the next backward, whatever cleared them meanwhile; a unit that
    it reshards then gives them back where ``use_orig_params=True``.
    """
    node, model = change.place, change.part
    loop = change.loop if isinstance(change.loop, cst.For) else None
    wraps = wraps_of(model, file)
    # Without what gives gradients back to the parameters no gradients come after those that are kept.
    freezes = _freezes(node, file) if _is_thawed(wraps, file) else Certainty.NO
    kept = keeps_frozen(model, file) if freezes is not Certainty.NO and _is_whole(node, loop, file) else Certainty.NO
    if kept is Certainty.NO or _clears_after_steps(node, model, file):
        return None
    is_model = sharded(model, file).certainty is Certainty.YES or value_of(model, file).model is not Certainty.NO
    return KeptFrozen(node, min(kept, freezes) if is_model else Certainty.MAYBE, wraps)


def _is_thawed(wraps: list[Wrap], file: File) -> bool:
    """Whether something may set ``requires_grad`` of what ``wraps`` make to anything but False."""
    thawed = file.project.values.thawed
    return None in thawed or any((one.path, one.call.lineno) in thawed for one in wraps)


def _freezes(node: cst.CSTNode, file: File) -> Certainty:
    """How sure it is that ``node`` sets ``requires_grad`` to False, here or in one of the calls of its function."""
    statement = file.parent(node)
    if isinstance(node, cst.Call):
        value = node.args[0].value if node.args else None
    else:
        value = statement.value if isinstance(statement, cst.Assign) else None
    if value is None or literal_bool(value) is not None:
        is_false = value is not None and literal_bool(value) is False
        return Certainty.YES if is_false else Certainty.NO
    function = file.function(node)
    given = function.params.params if function is not None and isinstance(value, cst.Name) else ()
    if isinstance(node, cst.Call) and last_name(node.func) != "requires_grad_":
        return Certainty.NO
    own = next((one for one in given if isinstance(value, cst.Name) and one.name.value == value.value), None)
    if own is None or function is None:
        # What hangs on the name of a parameter freezes some.
        bound = {name.value for loop in loops_around(node, file) for name in names_in(loop.target)}
        return Certainty.NO if bound & {name.value for name in names_in(value)} else Certainty.MAYBE
    calls = [one for one in file.nodes(cst.Call) if last_name(one.func) == function.name.value]
    values = [own.default, *(each.value for one in calls for each in one.args)]
    return Certainty.YES if any(one is not None and literal_bool(one) is False for one in values) else Certainty.MAYBE


def _is_whole(node: cst.CSTNode, loop: cst.For | None, file: File) -> bool:
    """Whether no test in ``loop`` leaves parameters out."""
    if loop is None:
        return True
    inside = [one for one in file.ancestors(node) if isinstance(one, cst.If) and loop in set(file.ancestors(one))]
    return not inside and last_name(loop.iter) in ("parameters", "named_parameters")


def _clears_after_steps(node: cst.CSTNode, model: cst.BaseExpression, file: File) -> bool:
    """Whether the optimizers of ``model`` clear its gradients between their step and the next forward."""
    calls = [one for one in file.nodes(cst.Call) if isinstance(one.func, cst.Attribute)]
    clears = [one for one in calls if last_name(one.func) == "zero_grad"]
    cleared = {_owner(one, file) for one in clears}
    steps = [one for one in calls if last_name(one.func) == "step" and _owner(one, file) in cleared]
    own = _optimizers_of({file.code(model), *_given(node, model, file)}, file)
    mine = [one for one in steps if _owner(one, file) in own] or steps
    return bool(mine) and all(_is_cleared_next(one, clears, file) for one in mine)


def _given(node: cst.CSTNode, model: cst.BaseExpression, file: File) -> list[str]:
    """What calls in this file give the function around ``node`` for its parameter ``model``."""
    function = file.function(node)
    names = [one.name.value for one in function.params.params] if function is not None else []
    if function is None or file.code(model) not in names:
        return []
    number = names.index(file.code(model))
    calls = [one for one in file.nodes(cst.Call) if last_name(one.func) == function.name.value]
    return [file.code(one.args[number].value) for one in calls if len(one.args) > number]


def _optimizers_of(models: set[str], file: File) -> set[str]:
    """The names of what is made of the parameters of one of ``models``."""
    found = set()
    for made in file.nodes(cst.Assign):
        text = file.code(made.value)
        if any(f"{model}.parameters(" in text or f"{model}.named_parameters(" in text for model in models):
            found |= {file.code(target.target) for target in made.targets}
    return found


def _owner(call: cst.Call, file: File) -> str:
    return file.code(call.func).rpartition(".")[0]


def _is_cleared_next(step: cst.Call, clears: list[cst.Call], file: File) -> bool:
    block = file.block(file.statement(step))
    mine = [one for one in clears if _owner(one, file) == _owner(step, file) and file.statement(one) in block]
    below = [end_of(one, file) for one in mine if end_of(one, file) > end_of(step, file)]
    events = passes_in(file.function(step) or file.module, file)
    return any(not any(end_of(step, file) < end_of(e.call, file) < end for e in events) for end in below)


def _changed(node: cst.CSTNode, file: File) -> tuple[cst.BaseExpression, cst.CSTNode | None] | None:
    """The model (or part of one) that ``node`` freezes or thaws, and the loop over its parameters if there is one."""
    target = node.target if isinstance(node, cst.AssignTarget) else node.func if isinstance(node, cst.Call) else None
    if not isinstance(target, cst.Attribute):
        return None
    name = target.attr.value
    if isinstance(node, cst.Call) and FREEZES.search(name):
        return target.value, None
    if name != ("requires_grad_" if isinstance(node, cst.Call) else "requires_grad"):
        return None
    model = model_of_parameter(target.value, file)
    if model is None:
        return (target.value, None) if isinstance(node, cst.Call) else None
    return model, next((entry for entry in file.ancestors(node) if isinstance(entry, cst.For)), None)


def _is_later(node: cst.CSTNode, own: cst.CSTNode | None, file: File) -> bool:
    """Whether a forward may have run before ``node``: its function does not wrap the model, or it stands in a loop."""
    scope = file.scope(node)
    if not any(may_wrap(entry.value, file) for entry in assignments(file) if file.scope(entry) == scope):
        return True
    around = file.ancestors(node)
    return any(isinstance(entry, cst.For | cst.While) and entry is not own for entry in around)
