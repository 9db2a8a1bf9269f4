"""Where the model that a finding is about was wrapped."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrapping import wrapping_call
from fsdp_rules.project.project import Certainty


def wrapped_in(node: cst.CSTNode, file: File) -> str:
    """Where the first sharded model in ``node`` is wrapped: ``line 12`` of the same file, ``net.py:12`` or "".

    A notebook's lines are not those of its cells, so that a wrap in one is left out.
    """
    head = _head(node)
    if head is None:
        return ""
    for one in (*file.inside(head, cst.Attribute), *file.inside(head, cst.Name)):
        place = _wrap(one, file)
        if place is not None and not place[0].endswith(".ipynb"):
            return f"line {place[1]}" if place[0] == file.path else f"{place[0]}:{place[1]}"
    return ""


def _head(node: cst.CSTNode) -> cst.CSTNode | None:
    """``node``, or of a block what its first line runs."""
    match node:
        case cst.If() | cst.While():
            return node.test
        case cst.For():
            return node.iter
        case cst.With():
            return node.items[0].item
        case cst.BaseCompoundStatement():
            return None
    return node


def _wrap(node: cst.BaseExpression, file: File) -> tuple[str, int] | None:
    found = sharded(node, file)
    text = dotted(node)
    if found.certainty is Certainty.NO or text is None:
        return None
    for wrap in reversed(found.wraps):
        if wrapping_call(wrap.value, file) is not None:
            return file.path, file.span(wrap).line
    return file.project.origin(file.path, file.scope(node), text)
