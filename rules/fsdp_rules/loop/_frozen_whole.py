"""Models that are frozen whole while a backward runs through them: FSDP1 keeps the gradients that they have by then."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.expressions import last_name, literal_bool, names_in
from fsdp_rules.file.file import File
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.kept_gradients import keeps_frozen
from fsdp_rules.model.passes import end_of, passes_in
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrapping import loops_around
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

KEEPS = "FSDP1 adds the gradients that a model has when a backward runs through it frozen to its next ones"
#: What gives gradients back to parameters: without it no gradients come after those that are kept.
THAWS = re.compile(r"requires_grad(_\((?!\s*False)|\s*=\s*(?!False|=))")
UNSURE = "if this freezes whole units of a sharded model: "
CLEAR = (
    "clear them before: call the optimizer's zero_grad() right after its step(), in the old code and here; or shard "
    "with fsdp_compat.shard, which adds them too"
)


def keeps_gradients(node: cst.CSTNode, model: cst.BaseExpression, loop: cst.For | None, file: File) -> Diagnosis | None:
    """What to say where ``node`` freezes all of ``model`` or of a part, in ``loop`` over its parameters if in one.

    A unit whose parameters are all frozen has no gradient to add its old ones to as a backward runs through it. FSDP1
    has set these aside for that, and they come back in the next backward, whatever cleared them meanwhile; a unit that
    it reshards then gives them back where ``use_orig_params=True``.
    """
    freezes = _freezes(node, file) if THAWS.search(file.text) else Certainty.NO
    kept = keeps_frozen(model, file) if freezes is not Certainty.NO and _is_whole(node, loop, file) else Certainty.NO
    if kept is Certainty.NO or _clears_after_steps(node, model, file):
        return None
    is_model = sharded(model, file).certainty is Certainty.YES or value_of(model, file).model is not Certainty.NO
    if is_model and kept is Certainty.YES and freezes is Certainty.YES:
        return Diagnosis(node, Level.MANUAL, KEEPS, CLEAR)
    return Diagnosis(node, Level.REVIEW, UNSURE + KEEPS, CLEAR)


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
