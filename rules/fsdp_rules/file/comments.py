"""The comments of a node, and what keeps them where a statement goes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from fsdp_rules.file.searching import find
from fsdp_rules.file.tree import Layout

#: libcst drops an empty statement line, comments and all, so a removed statement leaves this name until `settle`.
REMOVED = "__removed_by_fsdp_migrate__"
#: Comments to other tools about the line that they end.
PRAGMA = re.compile(r"#\s*(type: ignore|noqa|pylint:|pyright:|pyre-|mypy:|fmt: skip|pragma: no)")


def removed_line(leading: Sequence[cst.EmptyLine], what: str = "") -> cst.SimpleStatementLine:
    """What stands for a removed statement (``what``, a name) until its block is settled; keeps the comments above."""
    return cst.SimpleStatementLine([cst.Expr(cst.Name(REMOVED + what))], leading_lines=leading)


def is_removed(entry: cst.CSTNode, what: str = "") -> bool:
    """Whether ``entry`` was made by :func:`removed_line`, for ``what`` where that is given."""
    if not isinstance(entry, cst.SimpleStatementLine) or len(entry.body) != 1:
        return False
    small = entry.body[0]
    if not isinstance(small, cst.Expr) or not isinstance(small.value, cst.Name):
        return False
    return small.value.value == REMOVED + what if what else small.value.value.startswith(REMOVED)


def comments(node: cst.CSTNode, layout: Layout | None = None) -> list[str]:
    """The comments anywhere in ``node``, in order. A node of ``layout`` need not be walked."""
    known = layout is not None and layout.has(node)
    found = layout.inside(node, cst.Comment) if layout is not None and known else find(node, cst.Comment)
    return [comment.value for comment in found]


def lines_of_comments(*nodes: cst.CSTNode) -> list[cst.EmptyLine]:
    """The comments in ``nodes`` as lines of their own, without those to other tools about a line that is gone."""
    found = [comment for node in nodes for comment in comments(node)]
    return [cst.EmptyLine(comment=cst.Comment(text)) for text in found if not PRAGMA.match(text)]
