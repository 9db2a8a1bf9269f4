"""Code that stays as it is: branches that have their FSDP2 twin, models that stay FSDP1, copies of FSDP1 itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import libcst as cst

from fsdp_rules.construction._plan.four_bit import keeps_fsdp1
from fsdp_rules.engine.registry import in_charge
from fsdp_rules.file.file import File, dotted
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.flowing import value_of
from fsdp_rules.project.flow import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Role, Rule

#: What only torch's own files of FSDP1 define: a file with two of them, or with the class itself, is a copy of one.
OWN = re.compile(
    r"^(?:class (?:FlatParameter|FlatParamHandle|_FSDPState|FSDPParamInfo|StateInfo)\b|def (?:_optim_state_dict_impl|"
    r"_flatten_optim_state_dict|_unflatten_optim_state|_rekey_sharded_optim_state_dict|_lazy_init|_pre_forward_unshard|"
    r"_unflatten_process_groups|_summon_full_params|_unshard_params|_flatten_optim_state|_reshard_grads)\b)",
    re.MULTILINE,
)
#: How every message about code that is left as it is starts.
UNCHANGED = "unchanged: "
FOUR_BIT = "the model in this file keeps FSDP1 because it has 4-bit weights"
WITH_FSDP1 = "no change needed while the model keeps FSDP1 ({})"
BY_HAND = "no wrap in this project is rewritten: the one in {} must be changed by hand"
AFTER_WRAP = "rewrite that wrap by hand, then run this again"
EITHER = "rewrite both wraps, or write one branch for FullyShardedDataParallel and one for FSDPModule"
#: What is said without an edit, and is still about one, or about what edits would do; True: nothing is rewritten.
_OF_EDITS = {False: (Level.MANUAL,), True: (Level.MANUAL, Level.SAFE, Level.REVIEW)}
#: Where the FSDP2 code is that stands for what is left as it is.
BESIDE, ELSEWHERE = "there is an FSDP2 branch next to it", "the project has an FSDP2 branch for it"
RETIRE = "rewrite --retire removes FSDP1's branches once nobody runs them"
CLASS = re.compile(r"^class FullyShardedDataParallel\(", re.MULTILINE)


def vendored(file: File) -> tuple[Rule, Diagnosis] | None:
    """The one verdict about a file that is a copy of FSDP1's own code, None for any other."""
    if (CLASS.search(file.text) is None or _derives(file)) and len(OWN.findall(file.text)) < 2:
        return None
    if not file.module.body:
        return None
    uses = "fsdp1" in file.project.flags
    return in_charge(Role.PRIVATE), Diagnosis(
        file.module.body[0],
        Level.MANUAL if uses else Level.INFO,
        "this file is a copy of FSDP1's own code, which does not work with FSDP2 models, and is unchanged",
        "no change needed while its models use it; remove it once they use fully_shard",
    )


def _derives(file: File) -> bool:
    """Whether a class of ``file`` derives from FSDP1's, which may be called as FSDP1's is."""
    return any(file.fsdp1(base.value) == FSDP for node in file.nodes(cst.ClassDef) for base in node.bases)


def left_alone(diagnosis: Diagnosis, file: File) -> Diagnosis:
    """``diagnosis``, or why its code is left as it is."""
    twin = file.suppressions.gated(diagnosis.node)
    if twin:
        return Diagnosis(
            diagnosis.node,
            Level.INFO,
            f"{UNCHANGED}{BESIDE if file.suppressions.has_branch(diagnosis.node) else ELSEWHERE}",
            RETIRE,
        )
    if twin is False:
        return Diagnosis(
            diagnosis.node,
            Level.MANUAL,
            f"{UNCHANGED}this is inside a torch version check",
            "keep the branch that runs on your torch version, remove the check, and run this tool again",
        )
    by_hand = file.project.kept.left_by(file.path)
    if not diagnosis.edits and diagnosis.level not in _OF_EDITS[bool(by_hand)]:
        return diagnosis
    if by_hand and diagnosis.level is not Level.MANUAL and not keeps_fsdp1(file.module, file):
        here = f"{file.path}:{file.span(diagnosis.node).line}"
        own = next(((said, advice) for _, at, said, advice in file.project.kept.by_hand if at == here), None)
        if own is not None and diagnosis.edits:
            # What two edits contest is seen with both of them alone.
            return replace(diagnosis, level=Level.MANUAL, message=own[0], advice=own[1], edits=(), consumes=())
        message = f"{UNCHANGED}{BY_HAND.format(by_hand)}"
        return replace(diagnosis, level=Level.INFO, message=message, advice=AFTER_WRAP, edits=(), consumes=())
    if (either := _either(diagnosis, file)) is not None:
        message = f"{UNCHANGED}{either} may be a model that keeps FSDP1 or one that is rewritten"
        return replace(diagnosis, level=Level.MANUAL, message=message, advice=EITHER, edits=(), consumes=())
    kept = _kept(diagnosis, file)
    if kept is None:
        return diagnosis
    return replace(
        diagnosis,
        level=Level.INFO,
        message=f"{UNCHANGED}{kept}",
        advice=WITH_FSDP1.format(in_charge(Role.WRAP).id)
        if kept == FOUR_BIT
        else "no change needed until that wrap is migrated",
        edits=(),
        consumes=(),
    )


def said_once(found: list[tuple[Rule, Diagnosis]], file: File) -> list[tuple[Rule, Diagnosis]]:
    """``found`` with one finding for each statement that is left as it is, or for the file if its reason is one."""
    by_hand = file.project.kept.left_by(file.path)
    seen: set[tuple[cst.CSTNode, str]] = set()
    kept: list[tuple[Rule, Diagnosis]] = []
    for rule, diagnosis in found:
        if diagnosis.message.startswith(UNCHANGED):
            is_whole = diagnosis.advice == RETIRE or (by_hand and diagnosis.advice == AFTER_WRAP)
            where = file.module if is_whole else file.statement(diagnosis.node)
            key = (where, RETIRE if diagnosis.advice == RETIRE else diagnosis.message)
            if key in seen:
                continue
            seen.add(key)
        kept.append((rule, diagnosis))
    return kept


def _kept(diagnosis: Diagnosis, file: File) -> str | None:
    """Why the model that ``diagnosis`` is about stays FSDP1, None where it does not."""
    kept = file.project.kept
    if isinstance(diagnosis.node, cst.ClassDef):
        return None
    if diagnosis.edits and keeps_fsdp1(file.module, file):
        return FOUR_BIT
    if kept.alone and diagnosis.edits:
        return "all wraps in this project use a subclass of FSDP1's class, or are silenced by a comment"
    text = _first(diagnosis, _keeps, file)
    if text is not None:
        return f"{text} keeps FSDP1: its wrap has a comment, an FSDP2 alternative or a subclass of FSDP's class"
    return None


def _either(diagnosis: Diagnosis, file: File) -> str | None:
    """What ``diagnosis`` is about that may be a model of either kind, None where there is nothing of it."""
    return None if isinstance(diagnosis.node, cst.ClassDef) else _first(diagnosis, _is_either, file)


def _first(diagnosis: Diagnosis, holds: Callable[[cst.BaseExpression, File], bool], file: File) -> str | None:
    """The first name that ``diagnosis`` is about of which ``holds`` is true."""
    named = ((node, dotted(node)) for node in _named(diagnosis.node, file))
    return next((text for node, text in named if text is not None and holds(node, file)), None)


def _keeps(node: cst.BaseExpression, file: File) -> bool:
    return value_of(node, file).kept is not Certainty.NO


def _is_either(node: cst.BaseExpression, file: File) -> bool:
    fact = value_of(node, file)
    return Certainty.NO not in (fact.kept, fact.model)


def _named(node: cst.CSTNode, file: File) -> Iterator[cst.BaseExpression]:
    """The names and attributes around ``node``: of its whole expression, or on the first line of its statement."""
    around = [node]
    for ancestor in file.ancestors(node):
        if not isinstance(ancestor, cst.BaseExpression | cst.Arg | cst.WithItem | cst.AssignTarget):
            break
        around.append(ancestor)
    line = file.span(around[-1]).line
    compound = isinstance(around[-1], cst.BaseCompoundStatement)
    for kind in (cst.Name, cst.Attribute):
        for entry in file.inside(around[-1], kind):
            around_it = file.parent(entry)
            is_attribute = isinstance(around_it, cst.Attribute) and around_it.attr is entry
            if not is_attribute and (not compound or file.span(entry).line == line):
                yield entry
