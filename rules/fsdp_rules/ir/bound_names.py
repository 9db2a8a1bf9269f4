"""Which names a scope binds."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


def bound_in(statements: Sequence[ast.stmt]) -> set[str]:
    """The names that ``statements`` bind in their own scope."""
    return {name for node in _own(statements) for name in bound_by(node)}


def names_stored(node: ast.stmt) -> set[str]:
    """The names that ``node`` binds, at any depth of its own scope."""
    return bound_in([node])


def declared(statements: Sequence[ast.stmt]) -> tuple[set[str], set[str]]:
    """The names that ``statements`` declare global, and nonlocal."""
    found: tuple[set[str], set[str]] = (set(), set())
    for node in _own(statements):
        if isinstance(node, ast.Global):
            found[0].update(node.names)
        elif isinstance(node, ast.Nonlocal):
            found[1].update(node.names)
    return found


def _own(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        if not isinstance(node, _SCOPES):
            pending += ast.iter_child_nodes(node)


def bound_by(node: ast.AST) -> Iterator[str]:
    """The names that ``node`` itself binds."""
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Import | ast.ImportFrom):
        for one in node.names:
            yield one.asname or one.name.partition(".")[0]
    elif isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and node.name is not None:
        yield node.name
