"""Contexts that are chosen between one that does something and ``contextlib.nullcontext``."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.negation import asserted, negated
from fsdp_rules.file.tree import Code

NOTHING = "contextlib.nullcontext"


@dataclass(frozen=True)
class Chosen:
    """``node`` where ``condition`` is true (``otherwise``: false), always without one; else nothing is entered."""

    node: cst.BaseExpression
    condition: cst.BaseExpression | None = None
    otherwise: bool = False


def chosen(
    node: cst.BaseExpression, file: File, called: bool | None = None
) -> tuple[Chosen, cst.CSTNode | None] | None:
    """On what it hangs that ``node`` is entered, and what stands around that choice; None where it is another one.

    ``called`` says whether ``node`` makes the context, which a call does by default.
    """
    parent = file.parent(node)
    if not isinstance(parent, cst.IfExp) or parent.test is node:
        return Chosen(node), parent
    otherwise = parent.orelse is node
    other = parent.body if otherwise else parent.orelse
    if not is_nothing(other, file, called=isinstance(node, cst.Call) if called is None else called):
        return None
    return Chosen(node, parent.test, otherwise), file.parent(parent)


def entered_where(choice: Chosen, code: Code) -> str:
    """The text of what is true where ``choice`` enters its node."""
    if choice.condition is None:
        return "True"
    return negated(choice.condition, code) if choice.otherwise else asserted(choice.condition, code)


def is_nothing(node: cst.BaseExpression, file: File, *, called: bool) -> bool:
    """Whether ``node`` is ``nullcontext()``, or the class where that is not ``called``."""
    if called:
        return isinstance(node, cst.Call) and not node.args and file.resolved(node.func) == NOTHING
    return file.resolved(node) == NOTHING
