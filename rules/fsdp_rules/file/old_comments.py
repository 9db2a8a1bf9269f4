"""Comments about arguments of FSDP1 that mean nothing to FSDP2, or that were commented out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from fsdp_rules.file.expressions import literal_text
from fsdp_rules.file.tree import Layout

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
