"""Which function of the file a call is of, and whether a call in the tree gives a parameter a value of its own."""

from __future__ import annotations

import ast

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.project.walking import last_name_of


def default_of(name: cst.Name, parameter: cst.Param, file: File) -> cst.BaseExpression | None:
    """The default of ``parameter`` where no call that speaks of FSDP passes another value, else None.

    A caller that passes a value of FSDP1 has to import it, so that its file is among those that are read here.
    """
    function = file.function(name)
    if function is None or parameter.default is None:
        return None
    own = function.params
    positional = [entry.name.value for entry in (*own.posonly_params, *own.params)]
    wanted = parameter.name.value
    position = positional.index(wanted) if wanted in positional else len(positional)
    if positional[:1] in (["self"], ["cls"]):
        position -= 1
    for data in (file.text.encode(), *file.project.sources.values()):
        if function.name.value.encode() in data and _is_passed(data, function.name.value, wanted, position):
            return None
    return parameter.default


def _is_passed(data: bytes, function: str, parameter: str, position: int) -> bool:
    for call in ast.walk(ast.parse(data)):
        if not isinstance(call, ast.Call):
            continue
        called, given = last_name_of(call.func), call.args
        if called == "partial" and given:
            called, given = last_name_of(given[0]), given[1:]
        if called != function:
            continue
        starred = any(isinstance(entry, ast.Starred) for entry in given)
        if starred or len(given) > position or any(entry.arg in (None, parameter) for entry in call.keywords):
            return True
    return False


def called(call: cst.Call, file: File) -> cst.FunctionDef | None:
    """The function or method of this file that ``call`` is of; by its name alone where no other has it."""
    head, _, last = (dotted(call.func) or "").rpartition(".")
    if head not in ("", "self"):
        return None
    found = [function for function in file.nodes(cst.FunctionDef) if function.name.value == last]
    scope = file.scope(call)
    seen = [function for function in found if f"{scope}.".startswith(f"{file.scope(function)}.".lstrip("."))]
    nearest = max((len(file.scope(function)) for function in seen), default=0)
    seen = [function for function in seen if len(file.scope(function)) == nearest] or found
    return seen[0] if len(seen) == 1 else None
