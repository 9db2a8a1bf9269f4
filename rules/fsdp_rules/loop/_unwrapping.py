"""Functions and loops that take wrapper after wrapper off a model."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.ancestors import tests_around
from fsdp_rules.file.expressions import given_to
from fsdp_rules.file.file import File, dotted
from fsdp_rules.model.asked_modules import bound_in
from fsdp_rules.model.guards import Guard, guard_of, tested
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

#: The attributes of FSDP1's wrapper that hold the module inside.
INNER = ("module", "_fsdp_wrapped_module")


def is_passed_to_itself(node: cst.Attribute, file: File) -> bool:
    """Whether ``node``, ``model.module``, is what a function gives itself, as in ``return unwrap(model.module)``."""
    call, function = given_to(node, file), file.function(node)
    if call is None or function is None:
        return False
    return (dotted(call.func) or "").rpartition(".")[2] == function.name.value


def test_around(node: cst.Attribute, file: File) -> cst.BaseExpression | None:
    """The innermost test about ``model`` under which ``node``, ``model.module``, is reached; None without one."""
    subject = file.code(node.value)
    # An operand of ``and`` is a part of the test that is looked at.
    found = (test for test, truth in tests_around(node, file) if truth)
    tests = (test for test in found if not isinstance(file.parent(test), cst.BooleanOperation))
    return next((test for test in tests if _asks_about(subject, test, file)), None)


def _asks_about(subject: str, test: cst.BaseExpression, file: File) -> bool:
    """Whether ``test`` asks what ``subject`` is, by its class, an attribute or a function for FSDP1's class."""
    if tested(test, subject, file) in (Guard.FSDP1, Guard.MIXED):
        return True
    for call in file.inside(test, cst.Call):
        if dotted(call.func) in ("isinstance", "hasattr", "type") and file.code(call.args[0].value) == subject:
            return True
    return any(file.code(node) == f"{subject}.__class__" for node in file.inside(test, cst.Attribute))


def assigned_by(node: cst.Attribute, file: File) -> cst.Assign | None:
    """The assignment of ``node``, alone or as one arm of a conditional expression."""
    child: cst.CSTNode = node
    outer = file.parent(child)
    while isinstance(outer, cst.IfExp) and child is not outer.test:
        child, outer = outer, file.parent(outer)
    return outer if isinstance(outer, cst.Assign) else None


def has_other_arm(node: cst.Attribute, file: File) -> bool:
    """Whether the innermost condition around ``node`` goes on with something else where it does not hold."""
    for ancestor in file.ancestors(node):
        if isinstance(ancestor, cst.IfExp):
            return file.code(node.value) not in (file.code(ancestor.body), file.code(ancestor.orelse))
        if isinstance(ancestor, cst.If):
            return ancestor.orelse is not None and not _leaves(ancestor.orelse)
        if isinstance(ancestor, cst.While | cst.FunctionDef):
            return False
    return False


def _leaves(arm: cst.If | cst.Else) -> bool:
    """Whether ``arm`` only ends the loop."""
    body = arm.body.body
    line = body[0] if isinstance(arm, cst.Else) and len(body) == 1 else None
    small = line.body[-1] if isinstance(line, cst.SimpleStatementLine) else line
    return isinstance(small, cst.Return | cst.Break)


def is_looped(node: cst.Attribute, file: File) -> bool:
    """Whether a ``while`` gives the receiver of ``node`` (or a name that it is given to) the module in it."""
    statement, loop = assigned_by(node, file), loop_around(node, file)
    if loop is None:
        return False
    subject = file.code(node.value)
    if statement is None:
        return _is_queued(node, subject, loop, file)
    names = {file.code(target.target) for target in statement.targets}
    return subject in names or any(
        file.code(value) in names and subject in targets for value, targets in bound_in(loop, file)
    )


def loop_around(node: cst.CSTNode, file: File) -> cst.While | None:
    """The innermost ``while`` around ``node`` in its function."""
    loop = next((entry for entry in file.ancestors(node) if isinstance(entry, cst.While | cst.FunctionDef)), None)
    return loop if isinstance(loop, cst.While) else None


def ends_by_unwrapping(node: cst.Attribute, file: File) -> bool:
    """Whether nothing but ``model = model.module`` brings the ``while`` around ``node`` nearer to its end."""
    loop, statement, subject = loop_around(node, file), assigned_by(node, file), file.code(node.value)
    if loop is None or statement is None or subject not in {file.code(target.target) for target in statement.targets}:
        return False
    asks = tested(loop.test, subject, file) in (Guard.FSDP1, Guard.MIXED)
    if asks or isinstance(loop.test, cst.Name | cst.Integer):
        return True
    return any(isinstance(entry, cst.Continue) for entry in file.block(statement)) or has_other_arm(node, file)


def reassigned(loop: cst.While, file: File) -> cst.BaseExpression | None:
    """The model whose class ``loop`` asks for, where its body gives it something else than its ``module``."""
    for call in file.inside(loop.test, cst.Call):
        if dotted(call.func) != "isinstance" or not call.args:
            continue
        asked = call.args[0].value
        subject = asked.target if isinstance(asked, cst.NamedExpr) else asked
        text = file.code(subject)
        bound = any(text in targets for value, targets in bound_in(loop, file))
        inside = file.inside(loop, cst.Attribute)
        inner = any(file.code(one.value) == text and one.attr.value in INNER for one in inside)
        if bound and not inner and tested(loop.test, text, file) in (Guard.FSDP1, Guard.MIXED):
            return subject
    return None


def _is_queued(node: cst.Attribute, subject: str, loop: cst.While, file: File) -> bool:
    """Whether ``node`` is put into what ``loop`` takes ``subject`` from."""
    call = next((entry for entry in file.ancestors(node) if isinstance(entry, cst.Call | cst.BaseSmallStatement)), None)
    queue = call.func.value if isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute) else None
    return queue is not None and any(
        subject in targets
        and isinstance(value, cst.Call)
        and isinstance(value.func, cst.Attribute)
        and file.code(value.func.value) == file.code(queue)
        for value, targets in bound_in(loop, file)
    )


def unguarded_twin(node: cst.Attribute, gone: cst.CSTNode, file: File) -> Diagnosis | None:
    """What to say where the function also reads ``node``, ``model.module``, of what nothing says to be a wrapper.

    Without ``gone``, the statement that unwraps the model, such a place would look like one of a wrapped model.
    """
    text, scope = file.code(node), file.scope(node)
    found = any(
        file.code(entry) == text and file.scope(entry) == scope and gone not in file.ancestors(entry)
        for entry in file.nodes(cst.Attribute)
        if entry.attr.value == node.attr.value
        and sharded(entry.value, file).certainty is Certainty.NO
        and guard_of(entry, file.code(entry.value), file) in (Guard.NONE, Guard.OTHER)
    )
    subject = file.code(node.value)
    message = f"{subject}.module is also read on a line where {subject} may not be a wrapper"
    advice = "assign the unwrapped model to a new name, then run this tool again"
    return Diagnosis(gone, Level.MANUAL, message, advice) if found else None


def endless(node: cst.Attribute, subject: str) -> Diagnosis:
    """What to say of ``node``, FSDP1's private attribute of ``subject``, where a function gives it to itself."""
    return Diagnosis(
        node,
        Level.MANUAL,
        f"{subject} has no {node.attr.value} under FSDP2, and calling it with {subject} itself never ends",
        f"remove it for the sharded model: {subject} itself is the model",
    )
