"""What nodes of :mod:`ast` say: where they stand, how a text begins and ends, and which names a scope binds."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from fsdp_rules.ir.operations import At, Text


def place_of(node: ast.expr | ast.stmt) -> At:
    """Where a node stands."""
    return At(node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)


def joined_text(parts: Sequence[ast.expr]) -> Text | str:
    """The text that is put together of ``parts``."""
    known = [one.value if isinstance(one, ast.Constant) and isinstance(one.value, str) else "" for one in parts]
    return Text(known[0], known[-1]) if known else ""


def defaults_of(given: ast.arguments) -> list[tuple[str, ast.expr]]:
    """The parameters that have a default, each with it."""
    positional = [*given.posonlyargs, *given.args]
    last = positional[len(positional) - len(given.defaults) :]
    named = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    pairs = [*zip(last, given.defaults, strict=True), *((one, value) for one, value in named if value is not None)]
    return [(one.arg, default) for one, default in pairs]


def are_pairs(targets: Sequence[ast.expr], given: Sequence[ast.expr]) -> bool:
    """Whether each of ``targets`` is assigned the one of ``given`` that has its place."""
    return len(targets) == len(given) and not any(isinstance(one, ast.Starred) for one in (*targets, *given))


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
