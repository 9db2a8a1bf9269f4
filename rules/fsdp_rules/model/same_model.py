"""Whether two expressions stand for one model."""

from __future__ import annotations

import enum

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import Certainty


class Same(enum.Enum):
    """Whether two expressions are the same model."""

    YES = "yes"
    NO = "no"
    UNSURE = "unsure"


def same_model(subject: cst.BaseExpression, model: cst.BaseExpression, file: File) -> Same:
    """Whether ``model`` is ``subject``, or a part of it."""
    subject, model = _original(subject, file), _original(model, file)
    outer, inner = dotted(subject), dotted(model)
    if outer is None or inner is None:
        if known_as("other", model, file):
            return Same.NO
        return Same.YES if file.code(subject) == file.code(model) else Same.UNSURE
    if inner == outer or inner.startswith(f"{outer}.") or outer in (f"{inner}.module", f"{inner}._fsdp_wrapped_module"):
        return Same.YES if _home(outer, subject, file) == _home(inner, model, file) else Same.UNSURE
    if sharded(model, file).certainty is Certainty.NO or (
        _is_wrapped_here(subject, file) and _is_wrapped_here(model, file)
    ):
        return Same.NO
    return Same.UNSURE


def _original(node: cst.BaseExpression, file: File) -> cst.BaseExpression:
    """What ``node`` is another name of."""
    while isinstance(node, cst.Name):
        found = file.binding(node)
        if found is None or found.value is None or dotted(found.value) is None:
            return node
        node = found.value
    return node


def _home(text: str, place: cst.CSTNode, file: File) -> str:
    """The scope that binds what ``text`` starts with; "" for an object that means itself everywhere in its class."""
    root = text.partition(".")[0]
    scope = "" if root in ("self", "cls") else file.scope(place)
    while scope and (scope, root) not in file.bindings.found:
        scope = scope.rpartition(".")[0]
    return scope


def _is_wrapped_here(node: cst.BaseExpression, file: File) -> bool:
    """Whether the function of ``node`` wraps it itself, so that it is another model than all others it wraps."""
    return any(file.calls(wrap.value, FSDP) for wrap in sharded(node, file).wraps)
