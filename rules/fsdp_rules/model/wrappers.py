"""Models that may be in another wrapper, DistributedDataParallel or DeepSpeed's: what these have stays theirs."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fsdp_rules.file.expressions import is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.reaching import definitions
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.flowing import other_model
from fsdp_rules.model.guards import Guard, guard_of, is_under_fsdp
from fsdp_rules.model.sharded import Why, sharded
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Build, Diagnosis, Edit, Replace, ReplaceStatement
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.sentence import sentence

MODULE = "torch.distributed.fsdp.FSDPModule"
KEEPS = "a model in another wrapper keeps the original call"


def other_wrapper(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that the model ``node`` is, in some run, in another wrapper than FSDP1's.

    Every rule asks here whose edit would take from such a model what its own wrapper does.
    """
    found = sharded(node, file)
    if found.why is Why.ABOVE or is_wrapped_here(node, file) or is_under_fsdp(node, file):
        return Certainty.NO
    if guard_of(node, file.code(node), file) is Guard.FSDP1:
        return Certainty.NO
    named = ("ddp_wraps" if found.certainty is Certainty.YES else "ddp") in file.project.flags
    known = other_model(node, file)
    return max(known, Certainty.MAYBE) if named and found.certainty is Certainty.NO else known


def for_others(diagnosis: Diagnosis, call: cst.Call, model: cst.BaseExpression, file: File) -> Diagnosis:
    """``diagnosis``, which replaces ``call``, with the original call for a ``model`` that is not sharded.

    It is ``manual`` where the model cannot be asked for its class beside the call.
    """
    edit = next((one for one in diagnosis.edits if isinstance(one, Replace) and one.node is call), None)
    if edit is None or not is_repeatable(model):
        message = f"{file.code(model)} may be in another wrapper, whose {_method(call)} is then called"
        advice = f"write one branch for isinstance({file.code(model)}, FSDPModule) and one for the other wrapper"
        return replace(diagnosis, level=Level.MANUAL, message=message, advice=advice, edits=(), consumes=())
    chosen = _chosen(edit, call, model, file)
    return replace(
        diagnosis,
        message=sentence(diagnosis.message, KEEPS),
        edits=tuple(chosen if one is edit else one for one in diagnosis.edits),
    )


def asked_sharded(model: cst.BaseExpression, file: File) -> Build:
    """The test whether ``model`` is sharded by FSDP2."""
    module = file.ref(MODULE)

    def asked(code: Code) -> str:
        # What torch.compile gives is no FSDPModule, and has the sharded model in it.
        text = code(model)
        inner = f'getattr({text}, "_orig_mod", {text})' if "compiles" in file.project.flags else text
        return f"isinstance({inner}, {module})"

    return asked


def _chosen(edit: Replace, call: cst.Call, model: cst.BaseExpression, file: File) -> Edit:
    asked, parent = asked_sharded(model, file), file.parent(call)
    if isinstance(parent, cst.Expr):

        def branches(code: Code) -> str:
            new = edit.build(code).replace("\n", "\n    ")
            return f"if {asked(code)}:\n    {new}\nelse:\n    {code(call)}"

        return ReplaceStatement(parent, branches)
    alone = isinstance(parent, cst.Assign | cst.AnnAssign | cst.Return) or (
        isinstance(parent, cst.Arg) and parent.keyword is None
    )

    def either(code: Code) -> str:
        text = f"{edit.build(code)} if {asked(code)} else {code(call)}"
        return text if alone and "\n" not in text else f"({text})"

    return Replace(call, either)


def is_wrapped_here(node: cst.BaseExpression, file: File) -> bool:
    """Whether the function itself wraps ``node`` on every way to it."""
    reached = definitions(node, file) if isinstance(node, cst.Name) else None
    made = [entry.value if isinstance(entry, cst.Assign) else None for entry in reached or ()]
    return bool(made) and all(isinstance(value, cst.Call) and file.fsdp1(value.func) == FSDP for value in made)


def _method(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else "method"
