"""Where a call stands in its file, which says what may be written around it."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.expressions import is_repeatable
from fsdp_rules.file.file import File, dotted


@dataclass(frozen=True)
class Place:
    """Where a call stands: the statement around it and the form of that statement."""

    statement: cst.CSTNode
    form: str
    target: str = ""
    annotation: cst.BaseExpression | None = None


def place_of(call: cst.Call, file: File) -> Place | None:
    """The statement in which ``call`` is the whole value, or None when it is part of a larger expression."""
    parent = file.parent(call)
    if isinstance(parent, cst.Assign) and len(parent.targets) == 1 and parent.value is call:
        target = parent.targets[0].target
        if is_repeatable(target):
            return Place(parent, "assign", file.code(target))
    if isinstance(parent, cst.AnnAssign) and parent.value is call and dotted(parent.target) is not None:
        return Place(parent, "annotated", file.code(parent.target), parent.annotation.annotation)
    if isinstance(parent, cst.Return):
        return Place(parent, "return")
    if isinstance(parent, cst.Expr):
        return Place(parent, "bare")
    return None


def called_on(call: cst.Call, file: File) -> cst.CSTNode | None:
    """The statement whose value is ``call`` with methods called on it (``FSDP(model).to(device)``), else None."""
    node: cst.CSTNode = call
    parent = file.parent(node)
    while isinstance(parent, cst.Attribute) or (isinstance(parent, cst.Call) and parent.func is node):
        node, parent = parent, file.parent(parent)
    is_value = isinstance(parent, cst.Assign | cst.AnnAssign | cst.Return | cst.Expr) and parent.value is node
    return parent if is_value and node is not call else None
