"""Functions outside of the tree that give an argument back, as itself or as what behaves like it: for every analysis.

What is followed from name to name, and what is interpreted, read this one table, so that none of them forgets one.
"""

from __future__ import annotations

import ast
from typing import NamedTuple


class Passed(NamedTuple):
    """Which argument a function gives back: its position, and the keyword that it has there."""

    position: int
    keyword: str


_FIRST = {
    "builtins.iter": "",
    "contextlib.closing": "thing",
    "contextlib.nullcontext": "enter_result",
    "copy.copy": "x",
    "inspect.unwrap": "func",
    "torch.compile": "model",
    "typing.assert_type": "val",
    "typing.reveal_type": "obj",
    "typing_extensions.assert_type": "val",
    "typing_extensions.reveal_type": "obj",
    "weakref.proxy": "object",
}
#: By the dotted name of each function.
PASSING_ON = {
    **{name: Passed(0, keyword) for name, keyword in _FIRST.items()},
    "typing.cast": Passed(1, "val"),
    "typing_extensions.cast": Passed(1, "val"),
}


def passed_on(call: ast.Call, callee: str) -> ast.expr | None:
    """The argument of ``call``, of the function ``callee``, that it gives back; None for all other functions."""
    passed = PASSING_ON.get(callee)
    if passed is None or any(isinstance(argument, ast.Starred) for argument in call.args[: passed.position + 1]):
        return None
    if len(call.args) > passed.position:
        return call.args[passed.position]
    return next((one.value for one in call.keywords if one.arg and one.arg == passed.keyword), None)
