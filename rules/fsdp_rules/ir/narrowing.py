"""What a test says of the class of a name, where it holds and where it does not."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple


class Narrowing(NamedTuple):
    """``name`` is of one of ``classes``, or ``is_one`` is false and it is of none."""

    name: str
    classes: tuple[ast.expr, ...]
    is_one: bool


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
