"""What a block around which the flag of ``no_sync`` is set does with it, and with the model."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fsdp_rules.file.expressions import attribute_of
from fsdp_rules.file.file import File

NO_SYNC = "no_sync"
SYNC_FLAG = "set_requires_gradient_sync"
BINDINGS: tuple[type[cst.CSTNode], ...] = (
    cst.AssignTarget,
    cst.NamedExpr,
    cst.For,
    cst.AugAssign,
    cst.AnnAssign,
    cst.AsName,
)


def rebinds(block: cst.With, receiver: cst.BaseExpression, file: File) -> bool:
    """Whether a binding inside the block may make ``receiver`` mean another object behind it."""
    parts = {file.code(receiver)}
    for kind in (cst.Name, cst.Attribute, cst.Subscript):
        parts.update(file.code(node) for node in file.inside(receiver, kind))
    for entry in (entry for kind in BINDINGS for entry in file.inside(block.body, kind)):
        pending = [getattr(entry, "name" if isinstance(entry, cst.AsName) else "target")]
        while pending:
            target = pending.pop()
            if isinstance(target, cst.Tuple | cst.List):
                pending.extend(element.value for element in target.elements)
            elif file.code(target) in parts:
                return True
    return False


def nested(block: cst.With, file: File, own: Sequence[cst.CSTNode] = ()) -> bool:
    """Whether another ``no_sync`` or its flag lies around ``block`` or in it, whose state a plain True would undo."""
    return count(block.body, file, NO_SYNC, SYNC_FLAG) > 0 or around(block, file, own)


def around(block: cst.With, file: File, own: Sequence[cst.CSTNode] = ()) -> bool:
    """Whether another ``no_sync`` or its flag lies around ``block``, or may by a name or an exit stack.

    The statements ``own`` store what ``block`` itself enters.
    """
    function = file.function(block)
    known = sum(count(entry, file, NO_SYNC) for entry in (block, *own))
    others = function is not None and count(function, file, NO_SYNC) > known
    for ancestor in file.ancestors(block):
        for item in ancestor.items if isinstance(ancestor, cst.With) else ():
            entered = item.item.func if isinstance(item.item, cst.Call) else item.item
            may_be_held = isinstance(entered, cst.Name) or item.asname is not None
            if count(item, file, NO_SYNC) or (others and may_be_held):
                return True
        if isinstance(ancestor, cst.Try) and ancestor.finalbody and count(ancestor.finalbody, file, SYNC_FLAG):
            return True
    return False


def count(node: cst.CSTNode, file: File, *attributes: str) -> int:
    """How many of ``attributes`` are named in ``node``."""
    named = (*file.inside(node, cst.Attribute), *file.inside(node, cst.Call))
    return sum(attribute_of(entry, name) is not None for entry in named for name in attributes)
