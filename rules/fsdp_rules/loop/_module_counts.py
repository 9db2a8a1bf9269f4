"""Counts and places in ``modules()`` of a sharded model, among which FSDP1 has a wrapper for each unit."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import call_of, calls_plainly, given_to, last_name
from fsdp_rules.file.file import File
from fsdp_rules.loop._not_sharded_yet import is_not_sharded_yet
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import INNER, Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

METHODS = frozenset({"modules", "named_modules"})
#: What people are shown, and nothing computes with.
SHOWS = re.compile(r"print\w*|debug|info|warn|warning|error|critical|log|write|\w*(Error|Warning|Exception)")


def about_modules(node: cst.Attribute, file: File) -> Iterator[Diagnosis]:
    """The verdict about ``model.modules`` where the modules that its call gives are counted or numbered."""
    call = call_of(node, file)
    if call is None or call.args or file.code(node.value).endswith(INNER):
        return
    counted = next(_counted(call, file), None)
    if counted is None:
        return
    held = sharded(node.value, file).certainty
    if held is Certainty.NO or is_not_sharded_yet(node, node.value, file):
        return
    sure = held is Certainty.YES
    unsure = "" if sure else "if this model is sharded: "
    if isinstance(counted, cst.Subscript):
        message = (
            f"{unsure}FSDP1's {node.attr.value}() included a wrapper for each unit: this is now a different module"
        )
        advice = "take the module by its name (model.get_submodule), or count without the wrappers"
        yield Diagnosis(node, Level.MANUAL if sure else Level.REVIEW, message, advice)
        return
    said = "assumes nothing depends on this number: " if sure and not _is_shown(counted, file) else unsure
    yield Diagnosis(
        node,
        Level.REVIEW,
        f"{said}FSDP1's {node.attr.value}() included a wrapper for each unit, and FSDP2's does not",
        "add the number of units if you need FSDP1's number",
    )


def _counted(modules: cst.BaseExpression, file: File) -> Iterator[cst.CSTNode]:
    """What counts or numbers ``modules``, an expression that gives each of them once."""
    parent, whole = file.parent(modules), given_to(modules, file)
    if whole is not None and isinstance(whole.func, cst.Name):
        if whole.func.value in ("list", "tuple", "iter", "reversed") and len(whole.args) == 1:
            yield from _counted(whole, file)
        elif calls_plainly(whole, ("len",), 1):
            yield whole
        elif whole.func.value == "enumerate":
            yield from _numbered(whole, file)
    elif isinstance(parent, cst.CompFor) and parent.iter is modules and not parent.ifs:
        yield from _comprehended(parent, file)
    elif isinstance(parent, cst.Subscript) and parent.value is modules:
        if file.code(parent)[len(file.code(modules)) :].replace(" ", "") != "[0]":
            yield parent
    elif isinstance(parent, cst.For) and parent.iter is modules:
        yield from _added_up(parent)
    elif isinstance(parent, cst.Assign) and isinstance(modules, cst.Call | cst.ListComp):
        for use in file.uses(last_name(parent.targets[0].target)):
            if isinstance(modules, cst.ListComp) or isinstance(modules.func, cst.Name):
                yield from _counted(use, file) if file.objects.origin(use) is modules else ()


def _comprehended(loop: cst.CompFor, file: File) -> Iterator[cst.CSTNode]:
    shown = file.parent(loop)
    if isinstance(shown, cst.ListComp) and loop.inner_for_in is None:
        yield from _counted(shown, file)
    whole = given_to(shown, file) if isinstance(shown, cst.GeneratorExp) and loop.inner_for_in is None else None
    if isinstance(shown, cst.GeneratorExp) and isinstance(shown.elt, cst.Integer) and last_name(whole or loop) == "sum":
        yield whole or loop


def _numbered(call: cst.Call, file: File) -> Iterator[cst.CSTNode]:
    """The loop over ``call``, enumerated modules, where it does more with the number than to show it."""
    loop = file.parent(call)
    target = loop.target if isinstance(loop, cst.For | cst.CompFor) else None
    first = target.elements[0].value if isinstance(target, cst.Tuple) else None
    body = loop.body if isinstance(loop, cst.For) else file.parent(loop) if loop is not None else None
    if isinstance(first, cst.Name) and body is not None:
        uses = [use for use in file.inside(body, cst.Name) if use.value == first.value and use is not first]
        yield from [use for use in uses if not _is_shown(use, file)][:1]


def _added_up(loop: cst.For) -> Iterator[cst.CSTNode]:
    for line in loop.body.body:
        for statement in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(statement, cst.AugAssign) and isinstance(statement.value, cst.Integer):
                yield statement


def _is_shown(node: cst.CSTNode, file: File) -> bool:
    return any(
        isinstance(one, cst.Call) and one is not node and SHOWS.fullmatch(last_name(one.func)) is not None
        for one in file.ancestors(node)
        if isinstance(one, cst.BaseExpression)
    )
