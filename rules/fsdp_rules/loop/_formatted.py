"""Numbers that are put into text by a format, which plain tensors take and DTensors do not."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.expressions import last_name, names_in
from fsdp_rules.file.file import File

#: Calls that make a plain number, or another object, of what they are given.
PLAIN = frozenset({"bool", "float", "full_tensor", "int", "item", "len", "repr", "str", "to_local"})
#: How many names a number is followed through.
NAMES = 4
SPEC = re.compile(r"\{[^{}]*:[^{}]+\}")


def is_formatted(node: cst.BaseExpression, file: File, names: int = NAMES) -> bool:
    """Whether a number of the tensor ``node`` is formatted as in ``f"{number:.3f}"``, here or by a name below."""
    inner: cst.CSTNode = node
    for around in file.ancestors(node):
        if isinstance(around, cst.FormattedStringExpression):
            return around.format_spec is not None and around.conversion is None
        if isinstance(around, cst.Call):
            if last_name(around.func) in PLAIN:
                return False
            if inner is not around.func and last_name(around.func) == "format":
                return _has_spec(around)
        if isinstance(around, cst.BinaryOperation) and isinstance(around.operator, cst.Modulo):
            return False
        if isinstance(around, cst.Comparison | cst.Subscript) or _is_key(around, inner):
            return False
        if isinstance(around, cst.For | cst.CompFor | cst.Assign | cst.AugAssign):
            given = _given(around, inner)
            return names > 0 and any(_is_formatted_below(name, around, file, names) for name in given)
        if isinstance(around, cst.BaseStatement | cst.BaseSmallStatement):
            return False
        inner = around
    return False


def _given(around: cst.For | cst.CompFor | cst.Assign | cst.AugAssign, inner: cst.CSTNode) -> list[cst.Name]:
    """The names that a loop, or an assignment, gives what ``inner`` in it stands for."""
    if isinstance(around, cst.Assign):
        return [target.target for target in around.targets if isinstance(target.target, cst.Name)]
    if isinstance(around, cst.AugAssign):
        return [around.target] if isinstance(around.target, cst.Name) else []
    return names_in(around.target) if inner is around.iter else []


def _is_key(around: cst.CSTNode, inner: cst.CSTNode) -> bool:
    return isinstance(around, cst.DictElement | cst.DictComp) and inner is around.key


def _is_formatted_below(name: cst.Name, statement: cst.CSTNode, file: File, names: int) -> bool:
    """Whether what ``statement`` gives ``name`` is formatted further down in the same function."""
    function, last = file.function(name), file.span(statement).line
    return any(
        file.function(use) is function and file.span(use).line >= last and is_formatted(use, file, names - 1)
        for use in file.uses(name.value)
        if isinstance(statement, cst.For | cst.CompFor) or file.statement(use) is not statement
    )


def _has_spec(call: cst.Call) -> bool:
    """Whether ``call``, of ``str.format`` or of ``format``, has a format for its numbers."""
    if isinstance(call.func, cst.Name):
        return len(call.args) > 1
    text = call.func.value if isinstance(call.func, cst.Attribute) else None
    return isinstance(text, cst.SimpleString | cst.ConcatenatedString) and bool(SPEC.search(_written(text)))


def _written(text: cst.SimpleString | cst.ConcatenatedString) -> str:
    value = text.evaluated_value
    return value if isinstance(value, str) else ""
