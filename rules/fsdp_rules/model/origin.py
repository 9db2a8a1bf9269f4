"""Where the model that a finding is about was wrapped."""

from __future__ import annotations

import ast
from functools import lru_cache

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrapping import wrapping_call
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.walking import walk

#: Arguments of FSDP1's constructor that say between which ranks a model is sharded.
_GROUPS = frozenset({"device_mesh", "process_group"})


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
    place = _wrap(node, file) if sharded(node, file).certainty is Certainty.YES else None
    source = file.project.sources.get(place[0]) if place is not None else None
    if place is None or source is None:
        return True
    aliases = file.project.aliases(place[0])
    calls = [call for call in _calls(source).get(place[1], ()) if _is_wrap(call, aliases, file)]
    return len(calls) != 1 or len(calls[0].args) != 1 or any(one.arg in (None, *_GROUPS) for one in calls[0].keywords)


def _is_wrap(call: ast.Call, aliases: dict[str, str], file: File) -> bool:
    root, _, rest = (text_of(call.func) or "").partition(".")
    return root in aliases and canonical(file.project.resolve(f"{aliases[root]}.{rest}".rstrip("."))) == FSDP


@lru_cache(maxsize=16)
def _calls(source: bytes) -> dict[int, list[ast.Call]]:
    """The calls of a file that the tree has parsed, by the lines where they begin."""
    found: dict[int, list[ast.Call]] = {}
    for node in walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            found.setdefault(node.lineno, []).append(node)
    return found


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
    return value_of(node, file).origin
