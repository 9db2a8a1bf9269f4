"""Which names keep one value, from their first test on, as long as the scope that binds them runs."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from fsdp_rules.ir.bound_names import bound_by

_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_LOOPS = ast.For | ast.AsyncFor | ast.While


class _Scope:
    """A function, or the module, which begins at line 0; ``bound`` are the lines on which its names are bound last."""

    def __init__(self, node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef, outer: _Scope | None) -> None:
        self.line = 0 if isinstance(node, ast.Module) else node.lineno
        self.nodes = [one for one, _ in _own(node.body, False)]
        self._outer = outer
        given = [] if isinstance(node, ast.Module) else [one for one in ast.walk(node.args) if isinstance(one, ast.arg)]
        self.bound: dict[str, float] = {one.arg: 0 for one in given}
        for one, is_repeated in _own(node.body, False):
            line = float("inf") if is_repeated else getattr(one, "lineno", 0)
            self.bound.update({name: max(line, self.bound.get(name, 0)) for name in bound_by(one)})

    def of(self, name: str) -> _Scope | None:
        """The scope whose ``name`` this one sees."""
        return self if name in self.bound else self._outer and self._outer.of(name)


def constant_names(tree: ast.Module) -> dict[ast.Name, int]:
    """Each use of such a name, with the line of the function that binds it, 0 for the module."""
    reached = [one.value for one in ast.walk(tree) if isinstance(one, ast.Attribute | ast.Subscript)]
    changing = {one.id for one in reached if isinstance(one, ast.Name)}
    changing.update(name for one in ast.walk(tree) if isinstance(one, ast.Global | ast.Nonlocal) for name in one.names)
    return {use: line for use, line in _uses(_Scope(tree, None)) if use.id not in changing}


def _uses(scope: _Scope) -> Iterator[tuple[ast.Name, int]]:
    for one in scope.nodes:
        if isinstance(one, ast.Name) and (home := scope.of(one.id)) is not None and home.bound[one.id] < one.lineno:
            yield one, home.line
        elif isinstance(one, _FUNCTIONS):
            yield from _uses(_Scope(one, scope))
        elif isinstance(one, ast.ClassDef):
            for method in one.body:
                if isinstance(method, _FUNCTIONS):
                    yield from _uses(_Scope(method, scope))


def _own(nodes: Iterable[ast.AST], is_repeated: bool) -> Iterator[tuple[ast.AST, bool]]:
    """What stands in a scope itself, and whether a loop may run it again."""
    for node in nodes:
        yield node, is_repeated
        if not isinstance(node, _SCOPES):
            yield from _own(ast.iter_child_nodes(node), is_repeated or isinstance(node, _LOOPS))
