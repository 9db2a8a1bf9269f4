"""The comments of a node, what keeps them where a statement goes, and those about arguments of FSDP1."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from fsdp_rules.file.expressions import literal_text
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


#: Arguments that no output has in any form.
DROPPED = frozenset({"backward_prefetch", "buffer_dtype", "forward_prefetch", "limit_all_gathers", "use_orig_params"})
#: An argument of FSDP1's constructor that is no code any more.
COMMENTED_OUT = re.compile(
    r"#\s*(auto_wrap_policy|backward_prefetch|cpu_offload|device_id|device_mesh|forward_prefetch|ignored_modules|"
    r"ignored_states|limit_all_gathers|mixed_precision|param_init_fn|process_group|sharding_strategy|"
    r"sync_module_states|use_orig_params)\s*=[^=].*,\s*$"
)


def telling_comments(node: cst.CSTNode, layout: Layout) -> list[str]:
    """The comments in ``node``, those left out that say nothing where FSDP1's arguments are gone."""
    return [one.value for one in layout.inside(node, cst.Comment) if not _is_old(one, layout)]


def _is_old(comment: cst.Comment, layout: Layout) -> bool:
    around = [*layout.ancestors(comment)]
    item = next((one for one in around if isinstance(one, cst.Arg | cst.DictElement)), None)
    call = next((one for one in around if isinstance(one, cst.Call | cst.Dict)), None)
    if call is None:
        return False
    if COMMENTED_OUT.match(comment.value):
        return True
    items: Sequence[cst.CSTNode] = call.args if isinstance(call, cst.Call) else call.elements
    if item is not None and item not in items:
        return False
    place = items.index(item) if item is not None else -1
    # What stands on a line of its own is about what follows it, and what stands behind a line about all of that.
    if isinstance(layout.parent(comment), cst.EmptyLine):
        about = items[place + 1 : place + 2]
    else:
        line = layout.span(comment).line
        about = [one for one in items if layout.span(one).line <= line <= layout.span(one).end_line]
    return bool(about) and all(_name(one) in DROPPED for one in about)


def _name(item: cst.CSTNode) -> str:
    if isinstance(item, cst.Arg):
        return item.keyword.value if item.keyword is not None else ""
    key = item.key if isinstance(item, cst.DictElement) else None
    return literal_text(key) or ""
