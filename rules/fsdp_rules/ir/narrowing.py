"""What a test says of the class of a name, where it holds and where it does not."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence, Set
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


def narrowings(test: ast.expr, truth: bool, available: Set[str]) -> Iterator[Narrowing]:
    """What is known of names where ``test`` is true, or false."""
    match where_available(test, available):
        case ast.UnaryOp(op=ast.Not()) as negated:
            yield from narrowings(negated.operand, not truth, available)
        case ast.BoolOp() as joined if isinstance(joined.op, ast.And) is truth:
            for one in joined.values:
                yield from narrowings(one, truth, available)
        case ast.Call(func=ast.Name(id="isinstance"), args=[ast.Name() as subject, classes]):
            several = classes.elts if isinstance(classes, ast.Tuple) else [classes]
            if all(isinstance(one, ast.Name | ast.Attribute) for one in several):
                yield Narrowing(subject.id, tuple(several), truth)
        case ast.Call(func=ast.Name() | ast.Attribute() as asker, args=[ast.Name() as subject], keywords=[]):
            # A function may be what asks for the class.
            yield Narrowing(subject.id, (asker,), truth)


def asked_class(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, available: Set[str]) -> ast.expr | None:
    """The class of which ``node`` returns whether its argument is an object; None where it returns anything else.

    ``available`` are the names that are true wherever the class can be imported.
    """
    body = node.body if isinstance(node.body, list) else [ast.Return(node.body)]
    match [one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))], node.args:
        case [ast.Return(value=ast.expr() as given)], ast.arguments(
            posonlyargs=[], args=[ast.arg(arg=name)], vararg=None
        ):
            match where_available(given, available):
                case ast.Call(
                    func=ast.Name(id="isinstance"), args=[ast.Name(id=asked), ast.Name() | ast.Attribute() as cls]
                ):
                    return cls if asked == name else None
    return None


def where_available(test: ast.expr, available: Set[str]) -> ast.expr:
    """``test`` without names in ``available``: none is false where what else it asks for can be true."""
    match test:
        case ast.BoolOp(op=ast.And()):
            left = [one for one in test.values if not (isinstance(one, ast.Name) and one.id in available)]
            return ast.BoolOp(test.op, left) if len(left) > 1 else left[0] if left else test
        case ast.IfExp(test=ast.Name(id=name), orelse=ast.Constant(value=False)) if name in available:
            return test.body
    return test


def available(node: ast.Try) -> set[str]:
    """The names that are true where the imports in ``node`` succeed, and false where one of them fails."""
    if not any(isinstance(one, ast.Import | ast.ImportFrom) for one in node.body) or not node.handlers:
        return set()
    failed = set[str]().union(*(_set_to(False, one.body) for one in node.handlers))
    return (_set_to(True, node.body) | _set_to(True, node.orelse)) & failed


def _set_to(truth: bool, block: Sequence[ast.stmt]) -> set[str]:
    return {
        one.targets[0].id
        for one in block
        if isinstance(one, ast.Assign)
        and isinstance(one.targets[0], ast.Name)
        and isinstance(one.value, ast.Constant)
        and one.value.value is truth
    }
