"""The variables of one file: which scope binds a name, and every place that names the same variable."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from fsdp_rules.project.walking import children

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef
Function = ast.FunctionDef | ast.AsyncFunctionDef
#: Start and end of an expression: lines from 1, columns in bytes.
Position = tuple[int, int, int, int]


class Variable(NamedTuple):
    """The name ``name`` of the scope ``scope``."""

    scope: Scope
    name: str


class Variables:
    """The parents of all nodes of ``tree``, its expressions by their positions, and its variables by their scopes."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.by_position: dict[Position, ast.expr] = {}
        self.attributes: dict[str, list[ast.Attribute]] = defaultdict(list)
        self.functions: dict[tuple[Scope, str], list[Function | ast.ClassDef]] = defaultdict(list)
        self._uses: dict[Variable, list[ast.Name]] = defaultdict(list)
        self._bound: dict[Scope, set[str]] = defaultdict(set)
        self._declared: dict[Scope, dict[str, bool]] = defaultdict(dict)
        names: list[ast.Name] = []
        pending: list[ast.AST] = [tree]
        while pending:
            node = pending.pop()
            for child in children(node):
                self.parents[child] = node
                pending.append(child)
            self._note(node, names)
        for name in names:
            self._uses[self.variable(name)].append(name)

    def _note(self, node: ast.AST, names: list[ast.Name]) -> None:
        if isinstance(node, ast.expr):
            place = (node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0)
            self.by_position.setdefault(place, node)
        match node:
            case ast.Name():
                names.append(node)
                if not isinstance(node.ctx, ast.Load):
                    self._bound[self.scope(node)].add(node.id)
            case ast.Attribute():
                self.attributes[node.attr].append(node)
            case ast.arg():
                self._bound[self._owner(node)].add(node.arg)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._bound[self.scope(node)].add(node.name)
                self.functions[self.scope(node), node.name].append(node)
            case ast.Import() | ast.ImportFrom():
                bound = (alias.asname or alias.name.partition(".")[0] for alias in node.names)
                self._bound[self.scope(node)].update(bound)
            case ast.Global() | ast.Nonlocal():
                is_global = isinstance(node, ast.Global)
                self._declared[self.scope(node)].update(dict.fromkeys(node.names, is_global))

    def _owner(self, parameter: ast.arg) -> Scope:
        node: ast.AST = parameter
        while not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            node = self.parents[node]
        return node

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        """All nodes around ``node``, innermost first."""
        while (parent := self.parents.get(node)) is not None:
            yield parent
            node = parent

    def scope(self, node: ast.AST) -> Scope:
        """The innermost scope that runs ``node``: defaults, decorators and bases belong to the one outside."""
        for parent in self.around(node):
            inside = isinstance(parent, ast.Lambda) and node is parent.body
            if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inside = isinstance(node, ast.stmt) and node in parent.body
            if inside or isinstance(parent, ast.Module):
                return parent  # type: ignore[return-value]
            node = parent
        return self.tree

    def variable(self, name: ast.Name) -> Variable:
        """The variable that ``name`` is, which the module or Python itself has where no scope around binds it."""
        scope, is_own = self.scope(name), True
        while not isinstance(scope, ast.Module):
            declared = self._declared[scope].get(name.id)
            if declared:
                break
            if declared is None and name.id in self._bound[scope] and (is_own or not isinstance(scope, ast.ClassDef)):
                return Variable(scope, name.id)
            scope, is_own = self.scope(scope), False
        return Variable(self.tree, name.id)

    def uses(self, variable: Variable) -> list[ast.Name]:
        """Every place that names ``variable``, those that bind it included."""
        return self._uses.get(variable, [])

    def binds(self, name: str) -> bool:
        """Whether the module itself gives ``name`` a meaning."""
        return name in self._bound[self.tree]

    def called(self, func: ast.expr) -> tuple[Function | ast.ClassDef, int] | None:
        """The one function, method or class of this file that ``func`` calls, and how many arguments come by itself."""
        if isinstance(func, ast.Name):
            scope, name = self.variable(func)
            found = self.functions.get((scope, name), [])
            return (found[0], 0) if len(found) == 1 else None
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in ("self", "cls"):
            owner = next((one for one in self.around(func) if isinstance(one, ast.ClassDef)), None)
            found = self.functions.get((owner, func.attr), []) if owner is not None else []
            if len(found) == 1 and isinstance(found[0], ast.FunctionDef | ast.AsyncFunctionDef):
                is_static = any(ast.unparse(entry) == "staticmethod" for entry in found[0].decorator_list)
                return found[0], 0 if is_static else 1
        return None


@lru_cache(maxsize=64)
def variables_of(source: bytes) -> Variables:
    """The variables of the file with the text ``source``."""
    return Variables(ast.parse(source))
