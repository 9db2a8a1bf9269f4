"""Models that are frozen whole while a backward runs through them: FSDP1 keeps the gradients that they have by then."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import last_name, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.model.kept_gradients import kept_gradients
from fsdp_rules.model.passes import end_of, passes_in
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

KEEPS = "FSDP1 adds the gradients that a model has when a backward runs through it frozen to its next ones"
UNSURE = "if this freezes whole units that are kept gathered: "
CLEAR = "clear them before: call the optimizer's zero_grad() right after its step(), in the old code and here"


def keeps_gradients(node: cst.CSTNode, model: cst.BaseExpression, loop: cst.For | None, file: File) -> Diagnosis | None:
    """What to say where ``node`` freezes all of ``model`` or of a part, in ``loop`` over its parameters if in one.

    Under SHARD_GRAD_OP, with ``use_orig_params=True``, a unit whose parameters are all frozen is not resharded by the
    backward that runs through it. The gradients that it set aside for that come back in the next backward, whatever
    cleared them meanwhile.
    """
    gathered = kept_gradients(model, file).sure
    if gathered is Certainty.NO or _thaws(node, file) or not _is_whole(node, loop, file):
        return None
    if _clears_after_steps(node, model, file):
        return None
    if gathered is Certainty.YES and sharded(model, file).certainty is Certainty.YES:
        return Diagnosis(node, Level.MANUAL, KEEPS, CLEAR)
    return Diagnosis(node, Level.REVIEW, UNSURE + KEEPS, CLEAR)


def _thaws(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` sets ``requires_grad`` to True alone."""
    statement = file.parent(node)
    if isinstance(node, cst.Call):
        return not node.args or literal_bool(node.args[0].value) is True
    return isinstance(statement, cst.Assign) and literal_bool(statement.value) is True


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
