"""What a test says of the class of a name, where it holds and where it does not."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fsdp_rules.ir.nodes import place_of
from fsdp_rules.ir.operations import At


class Narrowing(NamedTuple):
    """``name`` is of one of ``classes``, or ``is_one`` is false and it is of none."""

    name: str
    classes: tuple[ast.expr, ...]
    is_one: bool


def absent(
    test: ast.expr, arms: Mapping[bool, Sequence[ast.expr | ast.stmt]], names: Mapping[str, int]
) -> Iterator[tuple[int, At]]:
    """The values of ``names`` that are None where ``test`` runs one of its ``arms``, each with the place of that."""
    for truth, arm in arms.items():
        if arm and (name := _none(test, truth)) in names:
            end = place_of(arm[-1])
            yield names[name], place_of(arm[0])._replace(end_line=end.end_line, end_column=end.end_column)


def _none(test: ast.expr, truth: bool) -> str:
    """The name that is None where ``test`` is true, or false; "" if there is none."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            return _none(test.operand, not truth)
        case ast.Compare(left=ast.Name(id=name), ops=[ast.Is()], comparators=[ast.Constant(value=None)]):
            return name if truth else ""
        case ast.Compare(left=ast.Name(id=name), ops=[ast.IsNot()], comparators=[ast.Constant(value=None)]):
            return "" if truth else name
    return ""


def narrowings(test: ast.expr, truth: bool) -> Iterator[Narrowing]:
    """What is known of names where ``test`` is true, or false."""
    match test:
        case ast.UnaryOp(op=ast.Not()):
            yield from narrowings(test.operand, not truth)
        case ast.BoolOp() if isinstance(test.op, ast.And) is truth:
            for one in test.values:
                yield from narrowings(one, truth)
        case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name() as subject, classes]):
            several = classes.elts if isinstance(classes, ast.Tuple) else [classes]
            if all(isinstance(one, ast.Name | ast.Attribute) for one in several):
                yield Narrowing(subject.id, tuple(several), truth)
