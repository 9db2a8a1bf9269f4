"""Rule for parameters that a training step does not use."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.construction._plan.around import REDUCES_UNUSED, uses_all
from fsdp_rules.construction._plan.call_place import above_of, place_of
from fsdp_rules.file.expressions import last_name, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.model.run_evidence import seen_wrap
from fsdp_rules.model.used_parts import use_of
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

REDUCED = "set_reduce_scatter_unused_params gives unused parameters zero gradients, as FSDP1 did"
REDUCED_IF_RUN = f"{REDUCED}, assuming each step runs every unit: a skipped one now gets zeros, not None"
SKIPPED = "check whether a step can skip a unit (experts, layer drop, several heads); if so, use fsdp_compat.shard"
BY_RUN = "if a step may skip a part (layer drop, experts, several heads), use fsdp_compat.shard"
FROZEN = "this model gets no gradients, so unused parameters make no difference"
USED = "each step uses all parameters of this model, so no zero gradients are lost"
ASSUMED = (
    "assumes each step uses all trained parameters, the same ones on all ranks: FSDP1 gave unused ones zero "
    "gradients, FSDP2 gives none, and sums wrong ones if ranks use different parameters of a unit"
)
OLDER = "if your model has any, pass --torch 2.13 for set_reduce_scatter_unused_params(True), or use fsdp_compat.shard"
OLDER_IN_EXPRESSION = (
    "if your model has any, assign this model to a name, and pass --torch 2.13, or use fsdp_compat.shard"
)
ADAPTERS = re.compile(r"lora|peft|adapter", re.IGNORECASE)
#: The call is a part of an expression, where no second statement can be written.
IN_EXPRESSION = (
    "if your model has any, assign this model to a name, and call set_reduce_scatter_unused_params(True) on it"
)


class UnusedParameters(Rule):
    """Unused parameters in a training step.

    FSDP1 reduces the gradients of a unit as one tensor. A parameter that a step does not use gets a gradient of zeros,
    and weight decay and momentum still change it. FSDP2 leaves `None`, and if ranks use different parameters of one
    unit (experts, modalities), it sums gradients that do not belong together. Nothing changes if the forwards of the
    program's classes use all their parts, or if the model is frozen. The output calls `fsdp_compat.shard` if the model
    has a part that no forward reads, a list of parts from which a parameter or a setting selects, or a part that is
    skipped at random. Otherwise a step is assumed to use all parameters.

    `set_reduce_scatter_unused_params(True)` (torch 2.13) makes FSDP2 reduce zeros too. The rewrite uses it if the
    project requires that torch or you pass `--torch 2.13`. It also gives zeros to the parameters of a unit that a step
    does not run at all (experts, layer drop, one of several heads). FSDP1 gave these no gradients, and weight decay did
    nothing. `fsdp_compat.shard`, and code migrated with `--to shim`, behave like FSDP1 in every version.
    """

    id = "FSDP121"
    name = "unused-parameters"
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    return FSDP(model)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    return fully_shard(model)
"""


def about_unused_parameters(call: cst.Call, module: cst.BaseExpression, file: File) -> Diagnosis:
    """What to say about a constructor that becomes ``fully_shard`` of ``module``."""
    shown = seen_wrap(call, file)
    if shown is not None and uses_all(call, file):
        message = f"each of {shown.steps} traced steps uses all trained parameters of this model on every rank"
        return Diagnosis(call, Level.INFO, message, BY_RUN, rule=UnusedParameters.id)
    can_reduce = file.settings.torch >= REDUCES_UNUSED
    is_named = bool(place_of(call, file) or above_of(call, file))
    is_whole = (file.path, file.span(call).line) in file.project.values.whole
    frozen = is_frozen(call, module, file)
    if can_reduce and is_named:
        runs_all = frozen or is_whole
        level, message, advice = (Level.SAFE, REDUCED, "") if runs_all else (Level.REVIEW, REDUCED_IF_RUN, SKIPPED)
    elif frozen:
        level, message, advice = Level.INFO, FROZEN, ""
    elif is_whole:
        level, message, advice = Level.INFO, USED, ""
    else:
        older = OLDER if is_named else OLDER_IN_EXPRESSION
        level, message, advice = Level.REVIEW, ASSUMED, IN_EXPRESSION if can_reduce else older
    if shown is not None and shown.unused and level is Level.REVIEW:
        more = f" and {len(shown.unused) - 3} more" if len(shown.unused) > 3 else ""
        advice = f"a traced step gave no gradient to {', '.join(shown.unused[:3])}{more}; {advice}"
    return Diagnosis(call, level, message, advice, rule=UnusedParameters.id)


def unread_parts(call: cst.Call, module: cst.BaseExpression, file: File) -> list[str]:
    """Why ``fully_shard`` alone would train ``module`` differently: its parts with parameters that no step uses."""
    used = use_of(module, file)
    # Where torch reduces zeros, a unit that is not run gets them too, which has none under FSDP1.
    unread = used.unread if file.settings.torch < REDUCES_UNUSED else ()
    return [
        *(f"no step uses {name}, and FSDP1 gives it zero gradients" for name in unread),
        *(
            f"a step may use only some entries of {name}, and FSDP1 gives zero gradients to the rest of a unit"
            for name in file.project.values.chosen.get((file.path, file.span(call).line), ())
        ),
        *(
            f"whether a step runs {name} is random: FSDP1 gives no gradients to a unit that did not run"
            for name in used.skipped
        ),
    ]


def is_frozen(call: cst.Call, module: cst.BaseExpression, file: File) -> bool:
    """Whether the function that wraps ``module`` turns all its parameters' gradients off, and the file none on."""
    if not _turned_off(file.module, file) or _turns_on(file.module, file):
        return False
    whole = file.function(call) or file.module
    place = place_of(call, file)
    names = {file.code(module), place.target if place is not None else ""}
    return any(
        last_name(other.func) == "requires_grad_"
        and isinstance(other.func, cst.Attribute)
        and [literal_bool(entry.value) for entry in other.args] == [False]
        and (file.code(other.func.value) in names or other is module or call in file.inside(other, cst.Call))
        for other in (*file.inside(whole, cst.Call), *file.inside(module, cst.Call))
        if file.function(other) is file.function(call)
    )


@once
def _turned_off(module: cst.Module, file: File) -> bool:
    """Whether the file turns the gradients of anything off."""
    calls = file.inside(module, cst.Call)
    return any(last_name(call.func) == "requires_grad_" for call in calls)


@once
def _turns_on(module: cst.Module, file: File) -> bool:
    """Whether the file may give some parameters gradients again, as adapters in a frozen model get them."""
    if ADAPTERS.search(file.text) is not None:
        return True
    for call in file.inside(module, cst.Call):
        if last_name(call.func) == "requires_grad_" and [literal_bool(one.value) for one in call.args] != [False]:
            return True
    return any(
        isinstance(target.target, cst.Attribute)
        and target.target.attr.value == "requires_grad"
        and literal_bool(assigned.value) is not False
        for assigned in file.inside(module, cst.Assign)
        for target in assigned.targets
    )
