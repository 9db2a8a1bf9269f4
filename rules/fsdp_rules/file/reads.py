"""Whether the value of a name is read where it stands."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.tree import Layout


def is_read(node: cst.BaseExpression, layout: Layout) -> bool:
    """Whether the value of the name or dotted name ``node`` is read: no import, no target, no name of something."""
    parent = layout.parent(node)
    if isinstance(parent, cst.ImportAlias | cst.ImportFrom | cst.Import | cst.AsName | cst.AssignTarget | cst.NameItem):
        return False
    if isinstance(parent, cst.Attribute):
        return parent.attr is not node
    if isinstance(parent, cst.Arg):
        return parent.keyword is not node
    if isinstance(parent, cst.Param | cst.FunctionDef | cst.ClassDef):
        return parent.name is not node
    if isinstance(parent, cst.AnnAssign | cst.NamedExpr | cst.For | cst.CompFor):
        return parent.target is not node
    return True


def is_read_whole(node: cst.BaseExpression, layout: Layout) -> bool:
    """Whether ``node`` is read and is no part of a longer dotted name."""
    return is_read(node, layout) and not isinstance(layout.parent(node), cst.Attribute)
