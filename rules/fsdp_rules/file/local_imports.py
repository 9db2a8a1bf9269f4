"""Which imports of a file are the module's, and which a function has for itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_rules.project.gates import statements
from fsdp_rules.project.walking import walk


def imported_above(tree: ast.Module) -> frozenset[str]:
    """The names that imports outside of functions bind."""
    inner = [entry for entry in statements(tree) if isinstance(entry, ast.FunctionDef | ast.AsyncFunctionDef)]
    own = {id(entry) for function in inner for entry in walk(function)}
    return frozenset(_bound(alias) for entry, alias in _aliases(tree) if id(entry) not in own)


def import_in_a_function(tree: ast.Module, local: str) -> str:
    """The first absolute import of ``tree`` that binds ``local``, of that name alone; "" where none does."""
    for entry, alias in _aliases(tree):
        if _bound(alias) == local and not getattr(entry, "level", 0):
            source = f"from {entry.module} " if isinstance(entry, ast.ImportFrom) else ""
            return f"{source}import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
    return ""


def _aliases(tree: ast.Module) -> Iterator[tuple[ast.Import | ast.ImportFrom, ast.alias]]:
    for entry in statements(tree):
        if isinstance(entry, ast.Import | ast.ImportFrom):
            yield from ((entry, alias) for alias in entry.names)


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]
