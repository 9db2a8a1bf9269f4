"""What calls give to functions one by one, and what only other forms of one tensor have in common."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File

#: Functions that call what they are given by the keyword ``key`` with each element of their first argument.
BY_KEY = frozenset({"max", "min", "sorted"})
#: Functions that call their first argument with each element of the others, or of the second.
BY_FUNCTION = frozenset({"accumulate", "filter", "map", "reduce", "starmap"})
#: Methods and attributes of a tensor that give one of the same values.
SAME = frozenset({"clone", "contiguous", "cpu", "cuda", "data", "detach", "double", "float", "to"})


def same_values(node: cst.BaseExpression) -> cst.BaseExpression:
    """The tensor whose values ``node`` has: ``p`` of ``p.detach().cpu()``."""
    while True:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in SAME:
            node = node.func.value
        elif isinstance(node, cst.Attribute) and node.attr.value in SAME:
            node = node.value
        else:
            return node


def functions_given(call: cst.Call, file: File) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """The functions that ``call``, of ``map`` and the like, calls, each with what it gives them one by one."""
    name = last_name(call.func)
    plain = [one.value for one in call.args if one.keyword is None]
    if name in BY_KEY and plain:
        return [(one.value, plain[0]) for one in call.args if one.keyword is not None and one.keyword.value == "key"]
    is_known = isinstance(call.func, cst.Name) or (file.resolved(call.func) or "").startswith(
        ("functools", "itertools")
    )
    if name in BY_FUNCTION and is_known and len(plain) > 1:
        return [(plain[0], one) for one in (plain[1:2] if name == "reduce" else plain[1:])]
    return []
