"""Questions whether a model has one of the methods of FSDP1's class: ``hasattr`` and ``getattr``."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import asked, is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrappers import other_wrapper
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level

#: Methods of FSDP1's class that DistributedDataParallel and the like have, too.
OF_OTHERS = frozenset({"no_sync", "register_comm_hook"})
#: Contexts in which nothing is differentiated.
GRADIENT_FREE = frozenset({"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad"})


def asked_for(node: cst.Call, method: str, file: File) -> Diagnosis | None:
    """The verdict about ``hasattr(model, method)`` and ``getattr(model, method)``, None for any other call.

    FSDP2's modules lack the method. Another wrapper may have it, and goes on to answer for itself.
    """
    question = asked(node)
    if question is None or question.name != method or sharded(question.subject, file).is_excluded:
        return None
    subject = question.subject
    if _is_for_others(node, subject, file):
        return None
    if question.function == "getattr":
        if method == "no_sync" and question.has_default and _computes_no_gradients(node, file):
            return Diagnosis(
                node,
                Level.INFO,
                f"an FSDP2 model has no method {method}, so the default is used (no gradients are computed here)",
            )
        if method == "no_sync" and question.has_default and file.settings.may_help and is_repeatable(subject):
            return _or_default(node, subject, file)
        return Diagnosis(
            node,
            Level.MANUAL,
            f"an FSDP2 model has no method {method} that getattr could find",
            f"call fsdp_compat.{method}(model) if the model is an FSDPModule",
        )
    module = file.ref("torch.distributed.fsdp.FSDPModule")
    is_fsdps = method not in OF_OTHERS and method not in file.project.methods
    sure = is_fsdps or (
        sharded(subject, file).certainty is Certainty.YES and other_wrapper(subject, file) is Certainty.NO
    )
    alone = isinstance(file.parent(node), cst.If | cst.Assign | cst.Return)

    def build(code: Code) -> str:
        text = f"isinstance({code(subject)}, {module})"
        if sure or not is_repeatable(subject):
            return text
        return f"{text} or {code(node)}" if alone else f"({text} or {code(node)})"

    return Diagnosis(
        node,
        Level.REVIEW,
        f"now tests isinstance({file.code(subject)}, FSDPModule): FSDP2 modules do not have this method",
        edits=(Replace(node, build),),
    )


def _or_default(node: cst.Call, subject: cst.BaseExpression, file: File) -> Diagnosis:
    """``getattr(model, "no_sync", default)``, with the helper in front of it for a sharded model."""
    module = file.ref("torch.distributed.fsdp.FSDPModule")
    taken = f"{file.ref('functools.partial')}({file.ref('fsdp_compat.no_sync')}, "
    alone = isinstance(file.parent(node), cst.Assign | cst.AnnAssign | cst.Arg | cst.Return)

    def build(code: Code) -> str:
        model = code(subject)
        text = f"{taken}{model}) if isinstance({model}, {module}) else {code(node)}"
        return text if alone else f"({text})"

    return Diagnosis(
        node,
        Level.REVIEW,
        f"now tests isinstance({file.code(subject)}, FSDPModule): FSDP2 modules do not have this method",
        edits=(Replace(node, build),),
    )


def _is_for_others(node: cst.Call, subject: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is only asked of a ``subject`` that is no FSDPModule."""
    parent = file.parent(node)
    if isinstance(parent, cst.IfExp) and parent.orelse is node:
        test = file.code(parent.test)
    elif isinstance(parent, cst.BooleanOperation) and isinstance(parent.operator, cst.Or) and parent.right is node:
        test = file.code(parent.left)
    else:
        return False
    return test.startswith(f"isinstance({file.code(subject)}, ") and test.endswith("FSDPModule)")


def _computes_no_gradients(node: cst.Call, file: File) -> bool:
    """Whether what ``node`` gives only runs inside blocks that compute no gradients."""
    parent = file.parent(node)
    if not isinstance(parent, cst.Assign) or len(parent.targets) != 1:
        return _is_without_gradients(node, file)
    target = parent.targets[0].target
    if not isinstance(target, cst.Name):
        return False
    uses = [use for use in file.uses(target.value) if file.function(use) is file.function(node)]
    return bool(uses) and all(_is_without_gradients(use, file) for use in uses)


def _is_without_gradients(node: cst.CSTNode, file: File) -> bool:
    return any(
        isinstance(item.item, cst.Call) and file.resolved(item.item.func) in GRADIENT_FREE
        for ancestor in file.ancestors(node)
        if isinstance(ancestor, cst.With)
        for item in ancestor.items
    )
