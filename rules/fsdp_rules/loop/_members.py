"""Tests for FSDP1's wrapper among all modules of a model, where it stands beside the module that it holds."""

from __future__ import annotations

from typing import cast

import libcst as cst

from fsdp_rules.file.dissolved import dissolved
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.model.flowing import known_as
from fsdp_rules.verdict.diagnosis import Diagnosis, Edit, Rebuild, Replace, remove
from fsdp_rules.verdict.finding import Level

NONE = "these modules included FSDP1's wrappers next to the wrapped modules: under FSDP2 the two are one object"
BOTH = "FSDP1's wrapper took one branch and its module the other: under FSDP2 both are one object in the first branch"
ADVICE = "for a unit, do what both branches did, the wrapper's branch first"


def among_members(node: cst.BaseExpression, call: cst.Call, file: File) -> Diagnosis | None:
    """What becomes of ``call``, which tests for the class ``node``, where it leaves wrappers out of all modules."""
    if not known_as("member", call.args[0].value, file):
        return None
    parent = file.parent(call)
    negated = isinstance(parent, cst.UnaryOperation) and isinstance(parent.operator, cst.Not)
    test = parent if negated and isinstance(parent, cst.BaseExpression) else call
    if (edits := _without(test, negated, file)) is not None:
        return Diagnosis(node, Level.SAFE, NONE, edits=edits, claims=(node,))
    around = file.parent(test)
    takes_both = isinstance(around, cst.IfExp) or (isinstance(around, cst.If) and around.orelse is not None)
    if negated or (takes_both and not skips(call, file)):
        return Diagnosis(node, Level.MANUAL, BOTH, ADVICE)
    return None


def _without(test: cst.BaseExpression, negated: bool, file: File) -> tuple[Edit, ...] | None:
    """The edits that take ``test`` away where it holds for every module, or for none; None where it says more."""
    around = file.parent(test)
    if isinstance(around, cst.If) and around.orelse is None and isinstance(file.parent(around), cst.IndentedBlock):
        if negated:
            return (Rebuild(around, dissolved()),)
        return (remove(around),) if isinstance(test, cst.Call) and skips(test, file) else None
    if not negated:
        return None
    if isinstance(around, cst.BooleanOperation) and isinstance(around.operator, cst.And):
        other = around.right if around.left is test else around.left
        return (Replace(around, lambda code: code(other)),)
    clause = file.parent(around) if isinstance(around, cst.CompIf) else None
    whole = file.parent(clause) if clause is not None else None
    if isinstance(whole, cst.BaseComp) and whole.for_in.inner_for_in is None:
        comprehension, argument = whole, file.parent(whole)
        given = file.parent(argument) if isinstance(argument, cst.Arg) else None
        if isinstance(given, cst.Call) and isinstance(whole, cst.GeneratorExp) and len(given.args) == 1:
            outer = given
            return (Replace(outer, lambda code: f"{code(outer.func)}({_unfiltered(comprehension, test, code)})"),)
        return (Replace(comprehension, lambda code: _unfiltered(comprehension, test, code, "()")),)
    return None


def _unfiltered(node: cst.BaseComp, test: cst.BaseExpression, code: Code, around: str = "") -> str:
    """The comprehension ``node`` without its filter ``test``; ``around`` are the brackets of a generator."""
    if isinstance(node, cst.DictComp):
        element = f"{code(node.key)}: {code(node.value)}"
    else:
        element = code(cast("cst.BaseSimpleComp", node).elt)
    clause = node.for_in
    kept = "".join(f" if {code(one.test)}" for one in clause.ifs if one.test is not test)
    text = f"{element} for {code(clause.target)} in {code(clause.iter)}{kept}"
    if isinstance(node, cst.GeneratorExp):
        return f"{around[:1]}{text}{around[1:]}"
    return f"[{text}]" if isinstance(node, cst.ListComp) else f"{{{text}}}"


def skips(call: cst.Call, file: File) -> bool:
    """Whether an ``if`` of ``call`` alone does nothing but leave the object out."""
    branch = file.parent(call)
    if not isinstance(branch, cst.If) or branch.test is not call:
        return False
    inner = branch.body.body
    lines = inner[0].body if len(inner) == 1 and isinstance(inner[0], cst.SimpleStatementLine) else inner
    return len(lines) == 1 and _is_a_skip(lines[0])


def _is_a_skip(line: cst.CSTNode) -> bool:
    if isinstance(line, cst.Return):
        return line.value is None or (isinstance(line.value, cst.Name) and line.value.value in ("False", "None"))
    return isinstance(line, cst.Continue | cst.Pass)
