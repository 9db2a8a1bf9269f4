"""What settings are in the arms of tests, by texts as ``args.mode == "fsdp"``, and which names keep one value."""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fsdp_rules.ir.nodes import bound_by
from fsdp_rules.ir.operations import At

_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
#: Functions that give the same in all of a run that trains.
_STEADY = r"\b(get_world_size|is_available|device_count)$"
#: Each object has its own, whatever the text.
_OWN = ("self", "cls")


class Setting(NamedTuple):
    """A setting is ``value``, or ``is_so`` is false and it is not; ``value`` is None where only its truth is asked.

    ``scope`` is the file and the first line of the function, 0 for the module, whose name the setting is, None where it
    is an attribute or an entry.
    """

    text: str
    value: Hashable
    is_so: bool
    scope: tuple[str, int] | None = None

    def excludes(self, other: Setting) -> bool:
        """Whether both cannot hold in one run, of the function if a name of one is asked."""
        if self.text != other.text or self.scope != other.scope:
            return False
        if self.value == other.value:
            return self.is_so is not other.is_so
        return None not in (self.value, other.value) and self.is_so and other.is_so


class Arm(NamedTuple):
    """A region of a file, and the settings under which it runs; ``is_block`` where it has whole statements."""

    at: At
    settings: frozenset[Setting]
    is_block: bool

    def has(self, at: At) -> bool:
        """Whether ``at`` stands in it."""
        return self.at[:2] <= at[:2] and at[2:] <= self.at[2:]

    def has_line(self, line: int) -> bool:
        """Whether all that stands on ``line`` does."""
        return self.is_block and self.at.line <= line <= self.at.end_line


def arms_of(tree: ast.Module, path: str) -> list[Arm]:
    """The arms of all tests of settings in the file at ``path``."""
    names = {use: (path, line) for use, line in constant_names(tree).items()}
    return [
        Arm(_around(nodes), found, isinstance(nodes[0], ast.stmt))
        for nodes, test, truth in _arms(tree)
        if (found := frozenset(_settings(test, truth, names)))
    ]


def _arms(tree: ast.Module) -> Iterator[tuple[Sequence[ast.stmt | ast.expr], ast.expr, bool]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            yield [node.body], node.test, True
            yield [node.orelse], node.test, False
        elif isinstance(node, ast.If):
            yield node.body, node.test, True
            if node.orelse:
                yield node.orelse, node.test, False
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            for place, one in enumerate(block if isinstance(block, list) else ()):
                rest = block[place + 1 :] if isinstance(block, list) else []
                if isinstance(one, ast.If) and not one.orelse and isinstance(one.body[-1], _LEAVING) and rest:
                    yield rest, one.test, False


def _around(nodes: Sequence[ast.stmt | ast.expr]) -> At:
    first, last = nodes[0], nodes[-1]
    return At(first.lineno, first.col_offset, last.end_lineno or last.lineno, last.end_col_offset or last.col_offset)


def _settings(test: ast.expr, truth: bool, names: Mapping[ast.Name, tuple[str, int]]) -> Iterator[Setting]:
    match test:
        case ast.UnaryOp(op=ast.Not()):
            yield from _settings(test.operand, not truth, names)
        case ast.BoolOp() if isinstance(test.op, ast.And) is truth:
            for one in test.values:
                yield from _settings(one, truth, names)
        case ast.Compare(
            left=left, ops=[ast.Eq() | ast.NotEq() as op], comparators=[ast.Constant(value=str() | int() as value)]
        ):
            if text := _text(left, names):
                yield Setting(text, value, isinstance(op, ast.Eq) is truth, _scope(left, names))
        case ast.Compare(left=left, ops=[ast.Gt() | ast.GtE() | ast.Lt() | ast.LtE()], comparators=[ast.Constant()]):
            if _text(left, names):
                yield Setting(ast.unparse(test), None, truth, _scope(left, names))
        case _:
            if text := _text(test, names):
                yield Setting(text, None, truth, _scope(test, names))


def _scope(node: ast.expr, names: Mapping[ast.Name, tuple[str, int]]) -> tuple[str, int] | None:
    return names.get(node) if isinstance(node, ast.Name) else None


def _text(node: ast.expr, names: Mapping[ast.Name, tuple[str, int]]) -> str:
    """The text of a name that keeps its value, or of an attribute or an entry of one; "" for anything else.

    The results of some functions are such, too.
    """
    if isinstance(node, ast.Call) and not node.args and not node.keywords:
        return ast.unparse(node) if re.search(_STEADY, ast.unparse(node.func)) else ""
    root: ast.expr = node
    while isinstance(root, ast.Attribute | ast.Subscript):
        if isinstance(root, ast.Subscript) and not isinstance(root.slice, ast.Constant):
            return ""
        root = root.value
    is_setting = isinstance(root, ast.Name) and (root in names if root is node else root.id not in _OWN)
    return ast.unparse(node) if is_setting else ""


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
