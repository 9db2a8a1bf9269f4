"""Methods that run before the ``__init__`` of their class wraps the model: those that it calls above the wrap."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.model.wrapping import sharding_statements
from fsdp_rules.project.project import Certainty


def runs_before_wrap(place: cst.CSTNode, text: str, file: File) -> Certainty:
    """How sure it is that ``place`` runs before ``__init__`` wraps ``text``, an attribute of its object.

    MAYBE where the method is called elsewhere as well, or may be, since its name is not private. NO where no call of it
    stands above the wrap.
    """
    function = file.function(place)
    if not text.startswith("self.") or not isinstance(function, cst.FunctionDef):
        return Certainty.NO
    owner = _owner(function, file)
    if owner is None or function.name.value == "__init__":
        return Certainty.NO
    name = function.name.value
    early = _early(owner, file).get(text, {})
    if name not in early:
        return Certainty.NO
    entered = file.project.entered
    others = name in entered.values or any(path != file.path for (path, _), _ in entered.callers.get(name, ()))
    return Certainty.YES if early[name] and name.startswith("_") and not others else Certainty.MAYBE


def _owner(function: cst.FunctionDef, file: File) -> cst.ClassDef | None:
    return next((one for one in file.ancestors(function) if isinstance(one, cst.ClassDef)), None)


@once
def _early(owner: cst.ClassDef, file: File) -> dict[str, dict[str, bool]]:
    """By attribute that ``__init__`` wraps, the methods that run above the wrap, and whether they run there alone."""
    methods = {one.name.value: one for one in owner.body.body if isinstance(one, cst.FunctionDef)}
    init = methods.get("__init__")
    if init is None:
        return {}
    first: dict[str, int] = {}
    for assign in file.inside(init, cst.Assign):
        for target in assign.targets:
            text = file.code(target.target)
            wraps = [file.span(one).line for one in sharding_statements(text, file.scope(assign), file)]
            if text.startswith("self.") and wraps:
                first[text] = min(wraps)
    return {text: _called_above(init, line, methods, file) for text, line in first.items()}


def _called_above(init: cst.FunctionDef, line: int, methods: dict[str, cst.FunctionDef], file: File) -> dict[str, bool]:
    early: dict[str, bool] = {}
    pending = [name for name, at in _own_calls(init, methods, file) if at < line]
    while pending:
        name = pending.pop()
        if name not in early:
            early[name] = True
            pending += [called for called, _ in _own_calls(methods[name], methods, file)]
    for call in file.nodes(cst.Call):
        name = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        around = file.function(call)
        if name not in early:
            continue
        if around is init:
            early[name] &= file.span(call).line < line
        elif around not in [methods[other] for other in early]:
            early[name] = False
    # What runs later calls what it calls.
    for _ in early:
        for name in [one for one, alone in early.items() if not alone]:
            early |= {called: False for called, _ in _own_calls(methods[name], methods, file) if called in early}
    return early


def _own_calls(function: cst.FunctionDef, methods: dict[str, cst.FunctionDef], file: File) -> Iterator[tuple[str, int]]:
    """The methods that ``function`` calls on its own object, each with the line of the call."""
    for call in file.inside(function, cst.Call):
        func = call.func
        if isinstance(func, cst.Attribute) and file.code(func.value) == "self" and func.attr.value in methods:
            yield func.attr.value, file.span(call).line
