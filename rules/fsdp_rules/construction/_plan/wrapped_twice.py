"""Models that are wrapped more than once: FSDP1 nests its wrappers, and ``fully_shard`` takes a module once."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.order import runs_before
from fsdp_rules.model.wrapping import assignments_of, wrapping_call


def line_of_first_wrap(module: cst.BaseExpression, call: cst.Call, file: File) -> int | None:
    """The line, from 1, of the wrap that has surely made ``module`` when ``call`` wraps it; None where none has."""
    if isinstance(module, cst.Call) and wrapping_call(module, file) is module:
        return file.span(module).line
    text, line = dotted(module), file.span(call).line
    above = [entry for entry in assignments_of(text or "", file) if file.span(entry).line < line]
    last = max(above, key=lambda entry: file.span(entry).line, default=None)
    if last is None or not isinstance(last.value, cst.Call) or wrapping_call(last.value, file) is not last.value:
        return None
    wrapped = file.span(last).line
    bound = (
        file.span(binding.statement).line
        for name in names_in(module)
        for binding in file.bindings.found.get((file.scope(call), name.value), [])
    )
    if not runs_before(last, call, file) or any(wrapped < number < line for number in bound):
        return None
    return wrapped
