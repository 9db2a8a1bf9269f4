"""Names of a program, and edits of its syntax tree, for transformations that keep its meaning."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Function = ast.FunctionDef
Node = TypeVar("Node", bound=ast.AST)

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
#: What must stay in its own function.
_BOUND_TO_ITS_FUNCTION = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.NamedExpr)


def sites(
    source: str, kind: type[Node], applies: Callable[[Node, ast.Module], bool]
) -> Iterator[tuple[ast.Module, Node]]:
    """Each node of ``kind`` in ``source`` to which an edit ``applies``, in a tree of its own."""

    def found(tree: ast.Module) -> list[Node]:
        return [node for node in ast.walk(tree) if isinstance(node, kind) and applies(node, tree)]

    for index in range(len(found(ast.parse(source)))):
        tree = ast.parse(source)
        yield tree, found(tree)[index]


def text(tree: ast.AST) -> str:
    """The source of ``tree``."""
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def statements(code: str, **parts: ast.expr) -> list[ast.stmt]:
    """The statements of ``code``, each name in ``parts`` replaced by that expression."""
    body = ast.parse(code).body
    return [_Substituted(parts).visit(node) for node in body]


def expression(code: str, **parts: ast.expr) -> ast.expr:
    """The expression ``code``, each name in ``parts`` replaced by that expression."""
    return _Substituted(parts).visit(ast.parse(code, mode="eval").body)


class _Substituted(ast.NodeTransformer):
    def __init__(self, parts: dict[str, ast.expr]) -> None:
        self.parts = parts

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.parts.get(node.id, node)


class _Replaced(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST | list[ast.stmt]) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
        return self.new if node is self.old else self.generic_visit(node)


def replaced(tree: ast.Module, old: ast.AST, new: ast.AST | list[ast.stmt]) -> ast.Module:
    """``tree`` with ``new`` in place of the node ``old``."""
    _Replaced(old, new).visit(tree)
    return tree


class _Renamed(ast.NodeTransformer):
    def __init__(self, name: str, new: str, stores: bool) -> None:
        self.name, self.new, self.stores = name, new, stores

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id == self.name and (self.stores or isinstance(node.ctx, ast.Load)):
            node.id = self.new
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        if node.arg == self.name and self.stores:
            node.arg = self.new
        return node


def rename(nodes: Sequence[ast.AST], name: str, new: str, stores: bool = True) -> None:
    """Rename ``name`` in ``nodes``; only where it is read if not ``stores``."""
    for node in nodes:
        _Renamed(name, new, stores).visit(node)


def imports(tree: ast.Module) -> list[ast.Import | ast.ImportFrom]:
    """The imports at the top level."""
    return [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]


def module_names(tree: ast.Module) -> set[str]:
    """The names that the top level binds."""
    bound = stored([node for node in tree.body if not isinstance(node, ast.FunctionDef | ast.ClassDef)])
    return bound | {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def imported(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that imports in ``nodes`` bind."""
    parts = [part for node in nodes for part in ast.walk(node)]
    return {name for part in parts if isinstance(part, ast.Import | ast.ImportFrom) for name in _imported(part)}


def _imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    return {(one.asname or one.name).partition(".")[0] for one in node.names}


def stored(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that ``nodes`` bind in the function that they are in."""
    found: set[str] = set()
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and not _is_load(part):
                found.add(part.id)
            elif isinstance(part, ast.Import | ast.ImportFrom):
                found |= _imported(part)
    return found - _own(nodes)


def read(nodes: Sequence[ast.AST], tree: ast.Module) -> list[str]:
    """The names that ``nodes`` read of those that functions of ``tree`` bind, none of a comprehension in them."""
    found = {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name) and _is_load(part)}
    bound = {part.arg for part in ast.walk(tree) if isinstance(part, ast.arg)}
    for part in ast.walk(tree):
        if isinstance(part, ast.Name) and not _is_load(part):
            bound.add(part.id)
        elif isinstance(part, ast.Import | ast.ImportFrom) and part not in tree.body:
            bound |= _imported(part)
    return sorted(found & bound - _own(nodes) - module_names(tree))


def _own(nodes: Sequence[ast.AST]) -> set[str]:
    """The names that comprehensions and lambdas in ``nodes`` bind for themselves."""
    found: set[str] = set()
    for node in nodes:
        for part in ast.walk(node):
            if isinstance(part, _COMPREHENSIONS):
                targets = [name for one in part.generators for name in ast.walk(one.target)]
                found |= {name.id for name in targets if isinstance(name, ast.Name)}
            elif isinstance(part, ast.Lambda):
                found |= {one.arg for one in part.args.args}
    return found


def _is_load(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def top_functions(tree: ast.Module) -> list[Function]:
    """The functions at the top level."""
    return [node for node in tree.body if isinstance(node, Function)]


def is_simple(function: Function) -> bool:
    """Whether ``function`` takes nothing but positional parameters, and holds no other function."""
    args = function.args
    plain = not (args.posonlyargs or args.kwonlyargs or args.vararg or args.kwarg or args.defaults)
    inner = [node for node in ast.walk(function) if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Lambda)]
    return plain and not function.decorator_list and inner == [function]


def may_move(nodes: Sequence[ast.AST]) -> bool:
    """Whether ``nodes`` may be run in another function."""
    parts = [part for node in nodes for part in ast.walk(node)]
    return not any(isinstance(part, _BOUND_TO_ITS_FUNCTION) for part in parts) and not _leaves_its_loop(nodes)


def _leaves_its_loop(nodes: Sequence[ast.AST]) -> bool:
    looping = {
        id(inner)
        for node in nodes
        for part in ast.walk(node)
        if isinstance(part, ast.For | ast.While)
        for inner in ast.walk(part)
    }
    leaving = [part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Break | ast.Continue)]
    return any(id(part) not in looping for part in leaving)


def owner(tree: ast.Module, inner: ast.AST) -> Function | None:
    """The innermost function that holds ``inner``."""
    found = None
    for function in ast.walk(tree):
        if isinstance(function, Function) and function is not inner and inner in ast.walk(function):
            found = function
    return found


def block(tree: ast.Module, statement: ast.stmt) -> list[ast.stmt]:
    """The statements among which ``statement`` is."""
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            found = getattr(node, name, None)
            if isinstance(found, list) and any(one is statement for one in found):
                return found
    raise ValueError("this statement is in no block of the tree")


def statement_of(tree: ast.Module, inner: ast.AST) -> ast.stmt:
    """The innermost statement that holds ``inner``."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and inner in ast.walk(node)]
    return found[-1]


def in_a_scope_of_its_own(tree: ast.Module, inner: ast.AST) -> bool:
    """Whether a comprehension or a lambda holds ``inner``."""
    holders = (node for node in ast.walk(tree) if isinstance(node, (*_COMPREHENSIONS, ast.Lambda)))
    return any(inner in ast.walk(node) for node in holders)


def define(tree: ast.Module, code: str) -> None:
    """Put the definitions in ``code`` behind the imports of ``tree``."""
    last = max((index for index, node in enumerate(tree.body) if node in imports(tree)), default=-1)
    tree.body[last + 1 : last + 1] = ast.parse(code).body
