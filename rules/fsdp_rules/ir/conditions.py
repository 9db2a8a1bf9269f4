"""What settings are in the arms of tests: ``args.mode == "fsdp"``, ``config["ddp"]`` and ``distributed``, by texts."""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from fsdp_rules.ir.constant_names import constant_names
from fsdp_rules.ir.operations import At

_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
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
            left=left, ops=[ast.Eq() | ast.NotEq() as op], comparators=[ast.Constant(value=str() as value)]
        ):
            if text := _text(left, names):
                yield Setting(text, value, isinstance(op, ast.Eq) is truth, _scope(left, names))
        case _:
            if text := _text(test, names):
                yield Setting(text, None, truth, _scope(test, names))


def _scope(node: ast.expr, names: Mapping[ast.Name, tuple[str, int]]) -> tuple[str, int] | None:
    return names.get(node) if isinstance(node, ast.Name) else None


def _text(node: ast.expr, names: Mapping[ast.Name, tuple[str, int]]) -> str:
    """The text of a name that keeps its value, or of an attribute or an entry of one; "" for anything else."""
    root: ast.expr = node
    while isinstance(root, ast.Attribute | ast.Subscript):
        if isinstance(root, ast.Subscript) and not isinstance(root.slice, ast.Constant):
            return ""
        root = root.value
    is_setting = isinstance(root, ast.Name) and (root in names if root is node else root.id not in _OWN)
    return ast.unparse(node) if is_setting else ""
