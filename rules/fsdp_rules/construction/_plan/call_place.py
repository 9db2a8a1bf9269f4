"""Where a call stands in its file, which says what may be written around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.expressions import is_repeatable
from fsdp_rules.file.file import File, dotted
from fsdp_rules.fsdp1.names import FSDP

#: What evaluates all of its parts once, from left to right.
_PARTS = (cst.Arg, cst.Call, cst.Dict, cst.DictElement, cst.Element, cst.List, cst.Tuple)
#: What may do more than give a value.
_RUNS = (cst.Await, cst.Call, cst.NamedExpr, cst.Yield)


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
    if isinstance(parent, cst.Assign) and parent.value is call:
        targets = [one.target for one in parent.targets]
        if all(map(is_repeatable, targets)) and (len(targets) == 1 or _has_name(call)):
            return Place(parent, "assign", " = ".join(map(file.code, targets)))
    if isinstance(parent, cst.AnnAssign) and parent.value is call and dotted(parent.target) is not None:
        return Place(parent, "annotated", file.code(parent.target), parent.annotation.annotation)
    if isinstance(parent, cst.Return):
        return Place(parent, "return")
    if isinstance(parent, cst.Expr):
        return Place(parent, "bare")
    return None


def above_of(call: cst.Call, file: File) -> cst.CSTNode | None:
    """The statement above which the model of ``call``, a part of its value, can be sharded; None where there is none.

    ``call`` has methods called on it (``FSDP(model).to(device)``), or all that runs in the statement before ``call``
    may run after it, too. So may other wraps: each is made above the statement.
    """
    node: cst.CSTNode = call
    parent = file.parent(node)
    while isinstance(parent, cst.Attribute) or (isinstance(parent, cst.Call) and parent.func is node):
        node, parent = parent, file.parent(parent)
    if node is call and not _has_name(call):
        return None
    while isinstance(parent, _PARTS):
        if not all(_may_run_later(one, file) for one in _before(node, parent)):
            return None
        node, parent = parent, file.parent(parent)
    is_value = isinstance(parent, cst.Assign | cst.AnnAssign | cst.Return | cst.Expr) and parent.value is node
    return parent if is_value and node is not call else None


def _before(node: cst.CSTNode, parent: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The parts of ``parent`` that are evaluated before ``node``."""
    for one in parent.children:
        if one is node:
            return
        yield one


def _may_run_later(node: cst.CSTNode, file: File) -> bool:
    if isinstance(node, cst.Arg | cst.DictElement | cst.Element):
        return _may_run_later(node.value, file)
    if isinstance(node, cst.Call) and file.fsdp1(node.func) == FSDP and _has_name(node):
        return True
    return not any(file.inside(node, kind) for kind in _RUNS)


def _has_name(wrap: cst.Call) -> bool:
    """Whether what ``wrap`` wraps has a name, by which it can be sharded above."""
    return bool(wrap.args) and not wrap.args[0].star and is_repeatable(wrap.args[0].value)
