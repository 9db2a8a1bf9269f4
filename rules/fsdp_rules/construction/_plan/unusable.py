"""Wraps that FSDP1 itself cannot train with, and models that are wrapped more than once."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.construction._plan.call_place import place_of
from fsdp_rules.file.expressions import before_methods, brief, names_in, root_of
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.reaching import runs_before
from fsdp_rules.model.just_made import SAME
from fsdp_rules.model.unbound_names import is_bound_outside, is_only_binding, unbound
from fsdp_rules.model.wrapping import assignments_of, wrapping_call
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level


def unusable(call: cst.Call, module: cst.BaseExpression, file: File) -> Iterator[Diagnosis]:
    """What to say of ``call``, which wraps ``module``, where its function cannot get that far, or drops the wrapper."""
    place = place_of(call, file)
    if place is None:
        return
    if place.form == "bare" and (kept := _kept(module)) is not None:
        name = file.code(kept)
        yield Diagnosis(
            call,
            Level.MANUAL,
            f"the wrapper is discarded: FSDP1 gathers the parameters of {brief(name)} only if the wrapper is called",
            f"assign it, as in {name} = ..., or remove the call, then run this tool again",
            claims=(call.func,),
        )
    elif (
        isinstance(module, cst.Name)
        and place.target == module.value
        and is_bound_outside(call, module.value, file)
        and is_only_binding(place.statement, module.value, file)
    ):
        yield unbound(call, module.value, call.func)


def _kept(module: cst.BaseExpression) -> cst.BaseExpression | None:
    """What the program goes on calling the ``module`` that a wrap is given; None for one that is made for the wrap."""
    module = before_methods(module, SAME)
    return module if isinstance(root_of(module), cst.Name) else None


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
