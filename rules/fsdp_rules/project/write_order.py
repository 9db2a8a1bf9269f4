"""Which writes of an object may have happened where it is read."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.variables import Scope, Variables
from fsdp_rules.project.write_facts import Write


def matter(writes: Iterable[Write], made: ast.expr, use: ast.expr, file: Variables) -> Iterator[Write]:
    """Those of ``writes`` that may have happened to what ``made`` makes where ``use`` reads it."""
    home = file.scope(use)
    ordered = home is file.scope(made) and not isinstance(home, ast.ClassDef) and not _is_read_later(use, file)
    ordered = ordered and not isinstance(file.parents[made], ast.arguments)
    for write in writes:
        is_elsewhere = write.anywhere or write.node not in file.parents
        if not ordered or is_elsewhere or _may_precede(write.node, made, use, home, file):
            yield write


def _is_read_later(use: ast.expr, file: Variables) -> bool:
    """Whether what ``use`` is put into here is only looked at later."""
    for around in file.around(use):
        if isinstance(around, ast.stmt):
            return False
        is_partial = isinstance(around, ast.Call) and (text_of(around.func) or "").rpartition(".")[2] == "partial"
        if is_partial or isinstance(around, ast.Dict | ast.List | ast.Set | ast.Tuple | ast.Lambda):
            return True
    return False


def _may_precede(node: ast.AST, made: ast.expr, use: ast.expr, home: Scope, file: Variables) -> bool:
    is_inner = file.scope(node) is not home
    while (scope := file.scope(node)) is not home:
        if isinstance(scope, ast.Module):
            return True
        # What an inner function does is done when that is called, below its definition.
        node = scope
    around = set(file.around(node))
    again = [one for one in file.around(use) if isinstance(one, ast.For | ast.AsyncFor | ast.While) and one in around]
    if any(loop not in file.around(made) for loop in again):
        return True
    if node in file.around(use) or _place(node) > _place(use):
        return False
    return is_inner or (_place(node) > _place(made) and not _excludes(node, made, file))


def _excludes(node: ast.AST, made: ast.AST, file: Variables) -> bool:
    """Whether ``made`` is in an arm of an ``if`` and ``node`` in the other one."""
    within = [made, *file.around(made)]
    above = {id(one): below for one, below in zip(within[1:], within, strict=False)}
    last: ast.AST = node
    for one in file.around(node):
        if id(one) in above:
            mine, other = above[id(one)], last
            return isinstance(one, ast.If) and (mine in one.body) != (other in one.body) and mine is not one.test
        last = one
    return False


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
