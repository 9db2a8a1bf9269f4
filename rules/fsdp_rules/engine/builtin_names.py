"""Builtin functions that rewritten code calls, in a file where their names mean something else."""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterator

from fsdp_rules.project.walking import children, walk

_NAMES = frozenset(dir(builtins))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (*_FUNCTIONS, *_COMPREHENSIONS, ast.ClassDef)


def misunderstood(before: ast.Module, after: str) -> list[str]:
    """The builtins that ``after`` reads where its own code means something else by their names, and ``before`` not."""
    if not any(name in _NAMES for name in _bound(before)) and not any(
        name in _NAMES for node in walk(before) if isinstance(node, _SCOPES) for name in _bound(node)
    ):
        return []
    return sorted(_own_reads(ast.parse(after)) - _own_reads(before))


def _own_reads(tree: ast.Module) -> Counter[str]:
    """How often names of builtins are read where the file gives them another meaning."""
    found: Counter[str] = Counter()
    pending: list[tuple[ast.AST, frozenset[str], frozenset[str]]] = [(tree, frozenset(_bound(tree)), frozenset())]
    while pending:
        # A class's names are seen in its own body, and not in the functions in it.
        node, names, of_class = pending.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in _NAMES & (names | of_class):
            found[node.id] += 1
        for child in children(node):
            if isinstance(child, ast.ClassDef):
                pending.append((child, names, frozenset(_bound(child))))
            elif isinstance(child, _SCOPES):
                pending.append((child, names | frozenset(_bound(child)), frozenset()))
            else:
                pending.append((child, names, of_class))
    return found


def _bound(scope: ast.AST) -> Iterator[str]:
    """The names that the body of a module, class, function or comprehension binds."""
    if isinstance(scope, _FUNCTIONS):
        arguments = scope.args
        given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        yield from (entry.arg for entry in given if entry is not None)
    pending = list(children(scope))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if not isinstance(node, _SCOPES):
            pending += children(node)
