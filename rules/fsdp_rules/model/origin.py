"""Where the model that a finding is about was wrapped."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.sharded import sharded, sharded_by_code
from fsdp_rules.model.wrap_given import wrap_given
from fsdp_rules.model.wrapping import wrapping_call
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.value_facts import NONE

#: The arguments that give a model another group than the default one.
GROUPS = ("device_mesh", "process_group")


def wrapped_in(node: cst.CSTNode, file: File) -> str:
    """Where the first sharded model in ``node`` is wrapped: ``line 12`` of the same file, ``net.py:12`` or "".

    A notebook's lines are not those of its cells, so that a wrap in one is left out.
    """
    head = _head(node)
    if head is None:
        return ""
    for one in (one for kind in (cst.Attribute, cst.Name, cst.Subscript) for one in file.inside(head, kind)):
        place = _wrap(one, file)
        if place is not None and not place[0].endswith(".ipynb"):
            return f"line {place[1]}" if place[0] == file.path else f"{place[0]}:{place[1]}"
    return ""


def may_have_group(node: cst.BaseExpression, file: File) -> bool:
    """Whether the sharded model ``node`` may have a process group of its own, for all that is seen of its wrap."""
    return may_be_given(GROUPS, node, file)


def may_be_given(names: Iterable[str], node: cst.BaseExpression, file: File) -> bool:
    """Whether the wrap of the sharded model ``node`` may have an argument of ``names``, for all that is seen of it."""
    given = wrap_given(node, file)
    # A run that shows a model does not say by which wrap it is one.
    is_sure = sharded_by_code(node, file).certainty is Certainty.YES
    return not is_sure or any(given.texts(name) != {NONE} for name in names)


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
    if found.certainty is Certainty.NO:
        return None
    for wrap in reversed(found.wraps):
        if wrapping_call(wrap.value, file) is not None:
            return file.path, file.span(wrap).line
    return next(((one[0], one[1]) for one in value_of(node, file).origins), None)
