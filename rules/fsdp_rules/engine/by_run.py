"""What a traced run changes in what is said of a file: doubts that it settles, and answers that it contradicts."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.engine.registry import in_charge
from fsdp_rules.file.file import File
from fsdp_rules.model.run_evidence import run_says, seen
from fsdp_rules.model.sharded import Sharded, sharded_by_code
from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.observed import MODEL, PARAMETERS, PART, Seen
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Role, Rule

Said = list[tuple[Rule, Diagnosis]]
_OF_SHARDED = MODEL | PART | PARAMETERS
_READ = (cst.Name, cst.Attribute, cst.Subscript)
_ADVICE = "please report this: the analysis was certain, and wrong"


def settled(said: Said, without: Said, file: File) -> Said:
    """``said``, and as an info what was said ``without`` the run's denials and is not any more."""
    left = {(rule.id, diagnosis.node) for rule, diagnosis in said}
    return said + [
        (rule, _denied(diagnosis, file))
        for rule, diagnosis in without
        if diagnosis.level is not Level.INFO and (rule.id, diagnosis.node) not in left
    ]


def _denied(diagnosis: Diagnosis, file: File) -> Diagnosis:
    statement = file.statement(diagnosis.node)
    denied = [found for _, found in _observed(statement, file) if found.held(_OF_SHARDED) is Certainty.NO]
    looks = max((found.looks for found in denied), default=0)
    shown = (
        f"not a sharded model in {looks} of {looks} runs of this line"
        if looks
        else "the traced run shows that nothing is needed"
    )
    message = f"unchanged: {shown} (otherwise: {diagnosis.message})"
    return Diagnosis(diagnosis.node, Level.INFO, message, "trace the other configurations that you train, too")


def contradicted(file: File) -> Said:
    """The places where the code says for sure what the run shows to be otherwise."""
    return [
        (in_charge(Role.UNKNOWN), Diagnosis(node, Level.MANUAL, message, _ADVICE))
        for node, found in _observed(file.module, file)
        if (message := _against(node, found, sharded_by_code(node, file), file))
    ]


def _against(node: cst.BaseExpression, found: Seen, by_code: Sharded, file: File) -> str:
    held, text = run_says(node, file, MODEL), file.code(node)
    if by_code.certainty is Certainty.YES and by_code.is_sure_here and held is Certainty.NO:
        seen_as = ", ".join(sorted(found.kinds))
        return (
            f"{text} is a sharded model according to this tool ({by_code.why.value}), but it was not in "
            f"{found.looks} of {found.looks} runs of this line ({seen_as})"
        )
    if by_code.certainty is Certainty.NO and by_code.is_decided and held is Certainty.YES:
        return (
            f"{text} is not a sharded model according to this tool ({by_code.why.value}), but it was in "
            f"{found.looks} of {found.looks} runs of this line"
        )
    return ""


def _observed(inside: cst.CSTNode, file: File) -> Iterator[tuple[cst.BaseExpression, Seen]]:
    for kind in _READ:
        for node in file.inside(inside, kind):
            found = seen(node, file)
            if found is not None:
                yield node, found
