"""What a traced run says of an expression, where there is a trace and the line ran."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.observed import INNER_MODEL, Seen, SeenWrap


def seen(node: cst.CSTNode, file: File) -> Seen | None:
    """How often ``node``, an expression of the file as it was read, was what."""
    if file.observed is None or not file.layout.has(node):
        return None
    return file.observed.values.get(file.span(node))


def run_says(node: cst.CSTNode, file: File, kinds: frozenset[str]) -> Certainty | None:
    """Whether ``node`` was one of ``kinds`` in the run; None where the run does not say so, or is not asked."""
    found = seen(node, file)
    if isinstance(node, cst.Attribute) and node.attr.value in ("module", "_fsdp_wrapped_module"):
        kinds |= INNER_MODEL
    held = None if found is None else found.held(kinds)
    if held is Certainty.NO and file.observed is not None and not file.observed.denies:
        return None
    return held


def seen_wrap(call: cst.Call, file: File) -> SeenWrap | None:
    """The models that ``call`` wrapped in the run."""
    if file.observed is None or not file.layout.has(call):
        return None
    span = file.span(call)
    return file.observed.wraps.get((span.line, span.column))


def seen_states(call: cst.Call, file: File) -> frozenset[str]:
    """The types of state in force, with what their configurations set, where the method of a model was read."""
    if file.observed is None or not file.layout.has(call):
        return frozenset()
    span = file.span(call.func)
    return file.observed.states.get((span.line, span.column), frozenset())


def is_seen_late(call: cst.Call, file: File) -> bool:
    """Whether a run shows that the parameters were sharded each time that ``call`` built an optimizer of them."""
    if file.observed is None or not file.observed.denies or not file.layout.has(call):
        return False
    span = file.span(call)
    return (span.line, span.column) in file.observed.late
