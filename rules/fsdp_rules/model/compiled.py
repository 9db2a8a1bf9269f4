"""Whether a model is compiled, which puts ``_orig_mod.`` in front of the names in its state."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.model.wrapping import assignments_of


def is_compiled(model: cst.BaseExpression, file: File) -> bool:
    """Whether this file makes ``model`` of what ``torch.compile`` gave, further up in its function or in its class."""
    text, scope, line = dotted(model), file.scope(model), file.span(model).line
    if text is None:
        return False
    for entry in assignments_of(text, file):
        if text.startswith("self."):
            near = file.scope(entry).partition(".")[0] == scope.partition(".")[0]
        else:
            near = file.scope(entry) == scope and file.span(entry).line < line
        if near and any(file.resolved(call.func) == "torch.compile" for call in _calls(entry.value)):
            return True
    return False


def _calls(value: cst.BaseExpression) -> Iterator[cst.Call]:
    """The calls that ``value`` may be, and those that make their first arguments."""
    if isinstance(value, cst.IfExp):
        yield from _calls(value.body)
        yield from _calls(value.orelse)
    elif isinstance(value, cst.Call):
        yield value
        if value.args:
            yield from _calls(value.args[0].value)
