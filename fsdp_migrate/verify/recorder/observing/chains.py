"""The expressions of a source file whose values can be read off a frame without running code of the program.

These are names, and attributes and constant elements of such: ``model``, ``self.model.module``, ``parts["net"]``.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: Name and first line of a code object, as CPython gives them to its code.
Scope = tuple[str, int]
#: An attribute, or a key in a tuple of one.
Step = str | tuple[object]
#: Line and column of the first character, line and column behind the last; columns in characters.
Position = tuple[int, int, int, int]


@dataclass(eq=False)
class Chain:
    """One expression: the name that it begins with, and what is taken of that. ``kinds`` counts what it has been."""

    position: Position
    root: str
    steps: tuple[Step, ...]
    kinds: dict[str, int] = field(default_factory=dict)


Lines = Mapping[int, list[Chain]]


def chains_of(source: str) -> Mapping[Scope, Lines]:
    """The expressions of each code object, by the line on which they begin.

    Left out are a name that its own line gives a value before it is read, and names of comprehensions: at the
    beginning of their line they are still something else. Raises :class:`SyntaxError` and :class:`ValueError`.
    """
    tree = ast.parse(source)
    finder = _Finder(source, _stores(tree))
    finder.block(tree.body, ("<module>", 1), frozenset(), None)
    return finder.found


#: On each line: column and name of what is given a value, and the assignment that does it, if it is one.
_Stores = Mapping[int, list[tuple[int, str, ast.AST | None]]]


def _stores(tree: ast.AST) -> _Stores:
    found: dict[int, list[tuple[int, str, ast.AST | None]]] = defaultdict(list)
    owners: dict[int, ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            owners.update((id(name), node) for target in targets for name in ast.walk(target))
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found[node.lineno].append((node.col_offset, node.id, owners.get(id(node))))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = ((one.asname or one.name).partition(".")[0] for one in node.names)
            found[node.lineno] += [(node.col_offset, name, None) for name in names]
    return found


class _Finder:
    def __init__(self, source: str, stores: _Stores) -> None:
        self._lines = source.splitlines()
        self._stores = stores
        self.found: dict[Scope, dict[int, list[Chain]]] = defaultdict(lambda: defaultdict(list))

    def block(self, body: Iterable[ast.AST], scope: Scope, hidden: frozenset[str], assigning: ast.AST | None) -> None:
        """Take what runs in one code object; ``hidden`` are the names of comprehensions around it."""
        for node in body:
            self._visit(node, scope, hidden, assigning)

    def _visit(self, node: ast.AST, scope: Scope, hidden: frozenset[str], assigning: ast.AST | None) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            self.block((*getattr(node, "decorator_list", ()), node.args), scope, hidden, assigning)
            self.block(node.body if isinstance(node.body, list) else (node.body,), _scope(node), frozenset(), None)
            return
        if isinstance(node, ast.ClassDef):
            self.block((*node.decorator_list, *node.bases, *node.keywords), scope, hidden, assigning)
            self.block(node.body, _scope(node), frozenset(), None)
            return
        if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            targets = (name for one in node.generators for name in ast.walk(one.target))
            hidden |= {name.id for name in targets if isinstance(name, ast.Name)}
        if isinstance(node, ast.IfExp | ast.BoolOp):
            # What its own line decides about may not run there.
            always, perhaps = _parts(node)
            self.block((always,), scope, hidden, assigning)
            self.block((one for one in perhaps if one.lineno != node.lineno), scope, hidden, assigning)
            return
        if isinstance(node, ast.stmt):
            assigning = node
        if isinstance(node, ast.expr):
            self._expression(node, scope, hidden, assigning)
        self.block(ast.iter_child_nodes(node), scope, hidden, assigning)

    def _expression(self, node: ast.expr, scope: Scope, hidden: frozenset[str], assigning: ast.AST | None) -> None:
        root, steps = _read(node)
        if root is None or root in hidden:
            return
        given = self._stores.get(node.lineno, ())
        if not any(n == root and column < node.col_offset and by is not assigning for column, n, by in given):
            self.found[scope][node.lineno].append(Chain(self._position(node), root, steps))

    def _position(self, node: ast.expr) -> Position:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return (
            node.lineno,
            self._characters(node.lineno, node.col_offset),
            end_line,
            self._characters(end_line, end_column),
        )

    def _characters(self, line: int, column: int) -> int:
        """``column`` in characters; :mod:`ast` counts bytes."""
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return column if text.isascii() else len(text.encode()[:column].decode("utf-8", "ignore"))


def _parts(node: ast.IfExp | ast.BoolOp) -> tuple[ast.expr, list[ast.expr]]:
    if isinstance(node, ast.IfExp):
        return node.test, [node.body, node.orelse]
    return node.values[0], node.values[1:]


def _scope(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef) -> Scope:
    decorators = getattr(node, "decorator_list", ())
    return getattr(node, "name", "<lambda>"), min((one.lineno for one in decorators), default=node.lineno)


def _read(node: ast.expr) -> tuple[str | None, tuple[Step, ...]]:
    """The name and the steps of an expression, None for one that needs code to run."""
    steps: list[Step] = []
    while isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load):
        if isinstance(node, ast.Attribute):
            steps.append(node.attr)
        elif isinstance(node.slice, ast.Constant):
            steps.append((node.slice.value,))
        else:
            return None, ()
        node = node.value
    is_read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    return (node.id if is_read and isinstance(node, ast.Name) else None), tuple(reversed(steps))
