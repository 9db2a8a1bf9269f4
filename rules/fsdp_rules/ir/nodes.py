"""What single nodes of :mod:`ast` say: where they stand, and how a text that is put together begins and ends."""

from __future__ import annotations

import ast
from collections.abc import Sequence

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
