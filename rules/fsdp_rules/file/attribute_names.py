"""Which names an expression can be, where a program asks an object for an attribute by a text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import calls_plainly, elements
from fsdp_rules.file.file import File

#: Any text.
ANY = ".*"
#: How many names a text may go through.
DEPTH = 6
METHODS = ("items", "keys", "values")


def name_pattern(node: cst.BaseExpression, file: File, depth: int = 0) -> str:
    """A regular expression for all texts that ``node`` can be; what is only known at run time is any text."""
    if depth > DEPTH:
        return ANY
    match node:
        case cst.SimpleString() | cst.ConcatenatedString():
            value = node.evaluated_value
            return re.escape(value) if isinstance(value, str) else ANY
        case cst.FormattedString():
            parts = [
                re.escape(part.value) if isinstance(part, cst.FormattedStringText) else _filled(part, file, depth)
                for part in node.parts
            ]
            return "".join(parts)
        case cst.BinaryOperation(operator=cst.Add()):
            return name_pattern(node.left, file, depth + 1) + name_pattern(node.right, file, depth + 1)
        case cst.IfExp():
            return _any_of([node.body, node.orelse], file, depth)
        case cst.BooleanOperation():
            return _any_of([node.left, node.right], file, depth)
        case cst.Subscript():
            table = file.value(node.value)
            return _any_of(_values(table) or elements(table), file, depth)
        case cst.Name():
            return _bound(node, file, depth)
    return ANY


def _filled(part: cst.BaseFormattedStringContent, file: File, depth: int) -> str:
    if not isinstance(part, cst.FormattedStringExpression) or part.format_spec or part.conversion:
        return ANY
    return name_pattern(part.expression, file, depth + 1)


def _any_of(nodes: list[cst.BaseExpression] | None, file: File, depth: int) -> str:
    found = [name_pattern(node, file, depth + 1) for node in nodes or []]
    return ANY if not found or ANY in found else f"(?:{'|'.join(dict.fromkeys(found))})"


def _bound(name: cst.Name, file: File, depth: int) -> str:
    """What the loop around ``name`` gives it, or the assignments and loops of the nearest scope that binds it."""
    scope = file.scope(name)
    while not (bound := file.bindings.found.get((scope, name.value))) and scope:
        scope = scope.rpartition(".")[0]
    around = {entry for one in file.ancestors(name) for entry in (one, *_loops(one))}
    inner = [entry for entry in bound or [] if entry.statement in around]
    loop = inner[-1].statement if inner else None
    found = []
    for entry in bound or []:
        if loop is not None and entry.statement is not loop and loop not in file.ancestors(entry.statement):
            continue
        if entry.value is not None:
            found.append(name_pattern(entry.value, file, depth + 1))
        elif isinstance(entry.statement, cst.For | cst.CompFor):
            found.append(_looped(name.value, entry.statement.target, entry.statement.iter, file, depth))
        else:
            return ANY
    return ANY if not found or ANY in found else f"(?:{'|'.join(dict.fromkeys(found))})"


def _loops(node: cst.CSTNode) -> Iterator[cst.CompFor]:
    """The loops of a comprehension."""
    loop = node.for_in if isinstance(node, cst.BaseComp) else None
    while loop is not None:
        yield loop
        loop = loop.inner_for_in


def _looped(name: str, target: cst.BaseExpression, given: cst.BaseExpression, file: File, depth: int) -> str:
    """What ``name``, a part of the ``target`` of a loop over ``given``, can be."""
    place = None
    if isinstance(target, cst.Tuple | cst.List):
        names = [one.value.value if isinstance(one.value, cst.Name) else "" for one in target.elements]
        if name not in names:
            return ANY
        place = names.index(name)
    whole = file.value(given)
    if calls_plainly(whole, ("enumerate",), 1) and isinstance(whole, cst.Call):
        return _any_of(elements(file.value(whole.args[0].value)) if place == 1 else None, file, depth)
    if calls_plainly(whole, ("sorted", "list", "tuple", "set", "reversed"), 1) and isinstance(whole, cst.Call):
        whole = file.value(whole.args[0].value)
    if isinstance(whole, cst.Call) and isinstance(whole.func, cst.Attribute) and whole.func.attr.value in METHODS:
        table, method = file.value(whole.func.value), whole.func.attr.value
        if method == "items":
            return _any_of((_keys, _values)[place](table) if place in (0, 1) else None, file, depth)
        return _any_of((_keys if method == "keys" else _values)(table) if place is None else None, file, depth)
    entries = _keys(whole) or elements(whole)
    if place is not None:
        rows = [elements(entry) or [] for entry in entries or []]
        entries = [row[place] for row in rows] if all(len(row) > place for row in rows) else None
    return _any_of(entries, file, depth)


def _keys(table: cst.BaseExpression) -> list[cst.BaseExpression] | None:
    if not isinstance(table, cst.Dict):
        return None
    entries = [entry.key for entry in table.elements if isinstance(entry, cst.DictElement)]
    return entries if len(entries) == len(table.elements) else None


def _values(table: cst.BaseExpression) -> list[cst.BaseExpression] | None:
    if not isinstance(table, cst.Dict):
        return None
    entries = [entry.value for entry in table.elements if isinstance(entry, cst.DictElement)]
    return entries if len(entries) == len(table.elements) else None
