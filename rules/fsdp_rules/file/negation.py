"""The opposite of a condition, as a person would write it."""

from __future__ import annotations

import ast

import libcst as cst

from fsdp_rules.file.tree import Code

OPPOSITE: dict[type[cst.BaseCompOp], str] = {
    cst.LessThan: ">=",
    cst.GreaterThanEqual: "<",
    cst.GreaterThan: "<=",
    cst.LessThanEqual: ">",
    cst.Equal: "!=",
    cst.NotEqual: "==",
    cst.In: "not in",
    cst.NotIn: "in",
    cst.Is: "is not",
    cst.IsNot: "is",
}


def negated(node: cst.BaseExpression, code: Code) -> str:
    """The text of the opposite of ``node``, in the same order of evaluation; true or false wherever ``node`` is not."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        return bare(node.expression, code)
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        target = node.comparisons[0]
        return f"{code(node.left)} {OPPOSITE[type(target.operator)]} {code(target.comparator)}"
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
        return f"{bare(node, code)} == 0"
    if isinstance(node, cst.BooleanOperation):
        if isinstance(node.operator, cst.And):
            return f"{_side(node.left, ast.Or, code)} or {_side(node.right, ast.Or, code)}"
        return f"{_side(node.left, ast.And, code)} and {_side(node.right, ast.And, code)}"
    if isinstance(node, cst.Name) and node.value in ("True", "False"):
        return "False" if node.value == "True" else "True"
    if isinstance(node, cst.IfExp | cst.Lambda | cst.NamedExpr | cst.Comparison) and not node.lpar:
        return f"not ({code(node)})"
    return f"not {code(node)}"


def asserted(node: cst.BaseExpression, code: Code) -> str:
    """The text of ``node`` as a truth value."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Modulo):
        return f"{bare(node, code)} != 0"
    return bare(node, code)


def bare(node: cst.BaseExpression, code: Code) -> str:
    """The text of ``node`` without the parentheses around it."""
    text = code(node)
    for _ in node.lpar:
        text = text.removeprefix("(").removesuffix(")").strip()
    return f"({text})" if "\n" in text else text


def _side(node: cst.BaseExpression, result: type[ast.boolop], code: Code) -> str:
    """One negated side of a boolean operation, in parentheses where the resulting operator binds more tightly."""
    text = negated(node, code)
    top = ast.parse(f"({text})", mode="eval").body
    loose = isinstance(top, ast.BoolOp) and result is ast.And and isinstance(top.op, ast.Or)
    return f"({text})" if loose or isinstance(top, ast.IfExp | ast.Lambda | ast.NamedExpr) else text
