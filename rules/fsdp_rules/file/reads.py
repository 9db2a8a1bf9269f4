"""Whether the value of a name is read where it stands."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.tree import Layout

#: What has only names that it binds, and what has one, in which field. libcst's nodes are slow to ask by isinstance.
_BINDING = frozenset((cst.ImportAlias, cst.ImportFrom, cst.Import, cst.AsName, cst.AssignTarget, cst.NameItem))
_PARTS: dict[type, str] = {
    cst.Attribute: "attr",
    cst.Arg: "keyword",
    **dict.fromkeys((cst.Param, cst.FunctionDef, cst.ClassDef), "name"),
    **dict.fromkeys((cst.AnnAssign, cst.NamedExpr, cst.For, cst.CompFor), "target"),
}
_SEQUENCES = frozenset((cst.Element, cst.StarredElement, cst.Tuple, cst.List))


def is_read(node: cst.BaseExpression, layout: Layout) -> bool:
    """Whether the value of the name or dotted name ``node`` is read: no import, no target, no name of something."""
    parent = layout.parent(node)
    kind = type(parent)
    return kind not in _BINDING and (kind not in _PARTS or getattr(parent, _PARTS[kind]) is not node)


def is_read_whole(node: cst.BaseExpression, layout: Layout) -> bool:
    """Whether ``node`` is read and is no part of a longer dotted name."""
    return is_read(node, layout) and not isinstance(layout.parent(node), cst.Attribute)


def is_target(node: cst.CSTNode, layout: Layout) -> bool:
    """Whether ``node`` is assigned, changed in place or deleted where it stands, alone or among others."""
    parent = layout.parent(node)
    while parent is not None and type(parent) in _SEQUENCES:
        node, parent = parent, layout.parent(parent)
    return type(parent) is cst.AsName or getattr(parent, "target", None) is node
