"""Functions and loops that take wrapper after wrapper off a model."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.model.guards import Guard, guard_of, tested
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import Certainty


def is_passed_to_itself(node: cst.Attribute, file: File) -> bool:
    """Whether ``node``, ``model.module``, is what a function gives itself, as in ``return unwrap(model.module)``."""
    argument = file.parent(node)
    call = file.parent(argument) if isinstance(argument, cst.Arg) else None
    function = file.function(node)
    if not isinstance(call, cst.Call) or function is None:
        return False
    return (dotted(call.func) or "").rpartition(".")[2] == function.name.value


def test_around(node: cst.Attribute, file: File) -> cst.BaseExpression | None:
    """The innermost test about ``model`` under which ``node``, ``model.module``, is reached; None without one."""
    subject = file.code(node.value)
    child: cst.CSTNode = node
    for ancestor in file.ancestors(node):
        is_body = isinstance(ancestor, cst.If | cst.IfExp | cst.While) and child is ancestor.body
        if (
            isinstance(ancestor, cst.If | cst.IfExp | cst.While)
            and is_body
            and _asks_about(subject, ancestor.test, file)
        ):
            return ancestor.test
        if isinstance(ancestor, cst.FunctionDef):
            return None
        child = ancestor
    return None


def _asks_about(subject: str, test: cst.BaseExpression, file: File) -> bool:
    """Whether ``test`` asks what ``subject`` is, by its class, an attribute or a function for FSDP1's class."""
    if tested(test, subject, file) in (Guard.FSDP1, Guard.MIXED):
        return True
    for call in file.inside(test, cst.Call):
        if dotted(call.func) in ("isinstance", "hasattr", "type") and file.code(call.args[0].value) == subject:
            return True
    return any(file.code(node) == f"{subject}.__class__" for node in file.inside(test, cst.Attribute))


def is_looped(node: cst.Attribute, file: File) -> bool:
    """Whether a ``while`` gives the receiver of ``node`` (or a name that it is given to) the module in it."""
    statement = file.parent(node)
    loop = next((entry for entry in file.ancestors(node) if isinstance(entry, cst.While | cst.FunctionDef)), None)
    if not isinstance(statement, cst.Assign) or not isinstance(loop, cst.While):
        return False
    subject, names = file.code(node.value), {file.code(target.target) for target in statement.targets}
    if subject in names:
        return True
    return any(
        file.code(entry.value) in names and subject in {file.code(target.target) for target in entry.targets}
        for entry in file.inside(loop.body, cst.Assign)
    )


def is_read_elsewhere(node: cst.Attribute, gone: cst.CSTNode, file: File) -> bool:
    """Whether its function also reads ``node``, ``model.module``, outside of ``gone``, where nothing says what it is.

    Without ``gone``, the statement that unwraps the model, such a place would look like one of a wrapped model.
    """
    text, scope = file.code(node), file.scope(node)
    return any(
        file.code(entry) == text and file.scope(entry) == scope and gone not in file.ancestors(entry)
        for entry in file.nodes(cst.Attribute)
        if entry.attr.value == node.attr.value
        and sharded(entry.value, file).certainty is Certainty.NO
        and guard_of(entry, file.code(entry.value), file) in (Guard.NONE, Guard.OTHER)
    )
