"""Which functions are given a text that is formed from the number of the process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

#: What people call the number of a process, and of its place among others that hold parts of a model.
RANK = re.compile(r"(^|_)rank(_id)?(_|$)|get_rank$|^local_rank$", re.IGNORECASE)


def given_rank(tree: ast.Module) -> frozenset[str]:
    """The last names of the functions that ``tree`` gives such a text."""
    given: set[str] = set()
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.Module):
            texts = _texts(scope)
            calls = [node for node in ast.walk(scope) if isinstance(node, ast.Call)]
            given.update(
                _last(call.func)
                for call in calls
                if any(_is_formed(one, texts) for one in [*call.args, *(keyword.value for keyword in call.keywords)])
            )
    return frozenset(given)


def _texts(scope: ast.FunctionDef | ast.Module) -> frozenset[str]:
    """The names to which ``scope`` gives a text that is formed from a rank."""
    return frozenset(
        target.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and _is_formed(node.value, frozenset())
        for target in node.targets
        if isinstance(target, ast.Name)
    )


def _is_formed(node: ast.expr, texts: frozenset[str]) -> bool:
    """Whether ``node`` is one of ``texts``, or puts a rank into a text."""
    if isinstance(node, ast.Name):
        return node.id in texts
    return any(_names_rank(part) for whole in ast.walk(node) for part in _parts(whole))


def _parts(node: ast.AST) -> Iterator[ast.expr]:
    """What ``node`` puts into a text, where it forms one."""
    if isinstance(node, ast.FormattedValue):
        yield node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        yield from [*node.args, *(keyword.value for keyword in node.keywords)]
    elif isinstance(node, ast.Call) and _last(node.func) == "str":
        yield from node.args
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and isinstance(node.left, ast.Constant):
        yield node.right


def _names_rank(node: ast.expr) -> bool:
    return any(RANK.search(_last(one)) for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute))


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
