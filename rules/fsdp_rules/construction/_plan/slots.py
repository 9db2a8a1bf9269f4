"""Which definition of the project a call or a name takes FSDP1's configuration from, and what that definition gives."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.project.configured import Slot
from fsdp_rules.project.places import module_name


def slot_of(node: cst.BaseExpression, file: File) -> Slot | None:
    """The slot of a call of a project's function, or of a name that is imported from another file."""
    if isinstance(node, cst.Call):
        home = home_of(node.func, file)
        return Slot(*home) if home is not None else None
    if isinstance(node, cst.Name | cst.Attribute):
        home = home_of(node, file)
        return Slot(*home, is_call=False) if home is not None and home[0] != file.path else None
    return None


def home_of(node: cst.BaseExpression, file: File) -> tuple[str, str] | None:
    """The path of the file that defines what ``node`` names at its top level, and the name there; None if not seen."""
    text = dotted(node)
    if text is None or is_local(text.partition(".")[0], node, file):
        return None
    full = file.resolved(node)
    if full is None:
        given = file.references.starred.get(text, frozenset())
        if not given and _defines(text, file):
            return file.path, text
        full = next(iter(given)) if len(given) == 1 else None
    if full is None:
        return None
    module, _, name = full.rpartition(".")
    modules = file.project.names.modules.get(module, ())
    path = _by_module(tuple(file.project.sources)).get(modules[0]) if len(modules) == 1 else None
    return (path, name) if path is not None else None


@lru_cache(maxsize=4)
def _by_module(paths: tuple[str, ...]) -> dict[str, str]:
    """The path of each module."""
    return {module_name(path): path for path in paths}


def is_local(name: str, node: cst.CSTNode, file: File) -> bool:
    """Whether a function or class around ``node`` gives ``name`` a value."""
    scope = file.scope(node)
    while scope:
        if (scope, name) in file.bindings.found:
            return True
        scope = scope.rpartition(".")[0]
    return False


def _defines(name: str, file: File) -> bool:
    return definition(name, file) is not None or bool(file.bindings.found.get(("", name)))


def definition(name: str, file: File) -> cst.FunctionDef | None:
    """The one function called ``name`` at the top level of the file, where calling it only runs it."""
    found = [entry for entry in file.nodes(cst.FunctionDef) if entry.name.value == name and not file.scope(entry)]
    if len(found) != 1 or found[0].decorators or found[0].asynchronous or file.bindings.found.get(("", name)):
        return None
    return None if any(file.function(entry) is found[0] for entry in file.inside(found[0], cst.Yield)) else found[0]


def given(slot: Slot, file: File) -> list[cst.BaseExpression]:
    """The expressions that the definition of ``slot``, in ``file``, may give; none where that is not certain."""
    if not slot.is_call:
        bound = file.bindings.found.get(("", slot.name), [])
        return [bound[0].value] if len(bound) == 1 and bound[0].value is not None else []
    function = definition(slot.name, file)
    if function is None or not _always_returns(function.body):
        return []
    returns = [entry.value for entry in file.inside(function, cst.Return) if file.function(entry) is function]
    values = [_element(value, slot.part) for value in returns]
    return [value for value in values if value is not None] if None not in values else []


def _element(value: cst.BaseExpression | None, part: str) -> cst.BaseExpression | None:
    if not part:
        return None if isinstance(value, cst.Tuple) else value
    if not isinstance(value, cst.Tuple) or any(isinstance(entry, cst.StarredElement) for entry in value.elements):
        return None
    return value.elements[int(part)].value if int(part) < len(value.elements) else None


def _always_returns(body: cst.BaseSuite) -> bool:
    """Whether ``body`` never ends without a ``return`` or an error, so that nothing else is given."""
    last = body.body[-1] if body.body else None
    if isinstance(last, cst.SimpleStatementLine):
        return isinstance(last.body[-1], cst.Return | cst.Raise)
    if isinstance(last, cst.If):
        other = last.orelse
        otherwise = _always_returns(other.body) if isinstance(other, cst.Else) else _of_elif(other)
        return otherwise and _always_returns(last.body)
    return isinstance(last, cst.With) and _always_returns(last.body)


def _of_elif(other: cst.If | None) -> bool:
    return other is not None and _always_returns(cst.IndentedBlock([other]))


def unpacked(statement: cst.CSTNode, name: str, file: File) -> tuple[cst.Name, Slot] | None:
    """The element called ``name`` of the tuple that ``statement`` unpacks a project's function's result to."""
    if not isinstance(statement, cst.Assign) or not isinstance(statement.value, cst.Call):
        return None
    slot = slot_of(statement.value, file)
    if slot is None:
        return None
    return next(((node, own) for node, own in elements_of(statement, slot) if node.value == name), None)


def elements_of(statement: cst.Assign, slot: Slot) -> Iterator[tuple[cst.Name, Slot]]:
    """The names that ``statement`` unpacks the result of ``slot`` to, each with its own slot; none if one is not."""
    target = statement.targets[0].target
    if len(statement.targets) != 1 or not isinstance(target, cst.Tuple | cst.List):
        return
    names = [entry.value for entry in target.elements if isinstance(entry.value, cst.Name)]
    told_apart = [name.value for name in names if name.value != "_"]
    if len(names) == len(target.elements) and len(told_apart) == len(set(told_apart)):
        for position, name in enumerate(names):
            yield name, slot._replace(part=str(position))
