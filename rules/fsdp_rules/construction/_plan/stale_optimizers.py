"""Optimizers whose model another function, another method or another file wraps afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.construction._plan.early_optimizers import (
    EarlyOptimizer,
    models_read,
    parameters_of,
    wraps,
    wraps_part,
)
from fsdp_rules.file.expressions import names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.wrapping import assignments_of, wrapped_module
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.texts import NO_MODEL


def stale_model(call: cst.Call, handled: list[EarlyOptimizer], file: File) -> str | None:
    """The model of the optimizer that ``call`` builds, where that is wrapped later on; None where nothing says so.

    ``handled`` are the optimizers of the file that a wrap in the same function speaks for.
    """
    parameters = parameters_of(call, file)
    if parameters is None or any(call in set(file.inside(early.built, cst.Call)) for early in handled):
        return None
    for model in dict.fromkeys([*models_read(parameters, file), *_looped(parameters, file)]):
        # Groups hold settings beside the parameters: args.weight_decay makes no model of args.
        if NO_MODEL.search(model.rpartition(".")[2]):
            continue
        if _is_wrapped_below(model, call, file) or _is_wrapped_by_a_later_method(model, call, file):
            return model
        held = file.project.holds(file.path, file.scope(call), model)
        elsewhere = file.project.is_wrapped_elsewhere(file.path, file.scope(call), model)
        elsewhere = elsewhere or _is_given_below(model, call, file)
        if held is Certainty.NO and elsewhere and not _is_wrapped_above(model, call, file):
            return model
    return None


def _looped(parameters: cst.BaseExpression, file: File) -> Iterator[str]:
    """The models whose parts a comprehension goes through, or that are kept under a key."""
    for comprehension in file.inside(parameters, cst.CompFor):
        for name in names_in(comprehension.iter):
            yield name.value
    for call in file.inside(parameters, cst.Call):
        if isinstance(call.func, cst.Attribute) and isinstance(call.func.value, cst.Subscript):
            yield file.code(call.func.value)
        current: cst.CSTNode | None = call
        while current is not None and not isinstance(current, cst.BaseStatement):
            for clause in [getattr(current, "for_in", None)]:
                if isinstance(clause, cst.CompFor):
                    yield from (name.value for name in names_in(clause.iter))
            current = file.parent(current)


def _calls(call: cst.Call, file: File) -> Iterator[cst.Call]:
    """The calls of the function of ``call``, those inside its own functions left out."""
    owner = file.function(call) or file.module
    for other in file.inside(owner, cst.Call):
        if (file.function(other) or file.module) is owner:
            yield other


def _is_wrapped_below(model: str, call: cst.Call, file: File) -> bool:
    """Whether the same function wraps ``model`` further down: itself, or by a function or method of its own."""
    line = file.span(file.statement(call)).end_line
    return any(
        file.span(other).line > line and any(_is(module, model, file) for module in _wrapped_by(other, file))
        for other in _calls(call, file)
    )


def _wrapped_by(call: cst.Call, file: File) -> Iterator[cst.BaseExpression]:
    """What ``call`` wraps, or what a function that is defined in the same file wraps where ``call`` runs it."""
    if file.fsdp1(call.func) == FSDP:
        module = wrapped_module(call)
        if module is not None:
            yield module
        return
    function = _own_function(call, file)
    if function is None:
        return
    given = {parameter.name.value for parameter in function.params.params}
    for inner in file.inside(function, cst.Call):
        module = wrapped_module(inner) if file.fsdp1(inner.func) == FSDP else None
        if module is None or file.function(inner) is not function:
            continue
        if file.code(module).partition(".")[0] not in given - {"self"}:
            yield module


def _own_function(call: cst.Call, file: File) -> cst.FunctionDef | None:
    """The function inside the same function, or the method of the same object, that ``call`` runs."""
    text = dotted(call.func) or ""
    owner, _, name = text.rpartition(".")
    scope = file.scope(call)
    home = scope.rpartition(".")[0] if owner == "self" else scope
    if owner not in ("", "self") or (owner == "" and not scope):
        return None
    for function in file.nodes(cst.FunctionDef):
        if function.name.value == name and file.scope(function) == home:
            return function
    return None


def _is(module: cst.BaseExpression, model: str, file: File) -> bool:
    text = file.code(module)
    return text == model or text.startswith((f"{model}.", f"{model}["))


def _is_given_below(model: str, call: cst.Call, file: File) -> bool:
    """Whether the same function gives ``model`` further down to a function that wraps, maybe parts of it."""
    wrapping = {scope.rpartition(".")[2] for _, scope in file.project.origins if scope}
    return any(
        (dotted(other.func) or "").rpartition(".")[2] in wrapping
        and any(file.code(argument.value) == model for argument in other.args)
        for other in _calls(call, file)
        if file.span(other).line > file.span(call).line
    )


def _is_wrapped_above(model: str, call: cst.Call, file: File) -> bool:
    """Whether the same function has ``model`` wrapped further up."""
    for other in _calls(call, file):
        if file.span(other).line >= file.span(call).line:
            continue
        name = (dotted(other.func) or "").rpartition(".")[2]
        given = [argument.value for argument in other.args]
        if name in file.project.shards_arguments and any(file.code(entry) == model for entry in given):
            return True
        if wraps(other, file) and (wraps_part(other, model, file) or _wraps_alias(other, model, file)):
            return True
    return False


def _wraps_alias(call: cst.Call, model: str, file: File) -> bool:
    """Whether ``call`` wraps another name that the same function gives ``model``."""
    module = wrapped_module(call)
    text = None if module is None else dotted(module)
    return text is not None and any(
        file.code(given.value) == model and file.scope(given) == file.scope(call)
        for given in assignments_of(text, file)
    )


def _is_wrapped_by_a_later_method(model: str, call: cst.Call, file: File) -> bool:
    """Whether the object's methods build the optimizer first and wrap ``model``, an attribute, afterwards."""
    builder = file.function(call)
    if builder is None or not model.startswith("self."):
        return False
    for other in file.nodes(cst.Call):
        if _own_function(other, file) is not builder or dotted(other.func) != f"self.{builder.name.value}":
            continue
        if _is_wrapped_below(model, other, file):
            return True
    return False
