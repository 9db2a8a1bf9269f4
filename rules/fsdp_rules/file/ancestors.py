"""The nodes around a node, each with the part of it that the node stands in, and the tests that lead to it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.tree import leaves


def branches(node: cst.CSTNode, file: File) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Each node around ``node``, innermost first, with its child that ``node`` is or is inside of."""
    child = node
    for ancestor in file.ancestors(node):
        yield ancestor, child
        child = ancestor


def tests_around(node: cst.CSTNode, file: File) -> Iterator[tuple[cst.BaseExpression, bool]]:
    """Each test around ``node`` in its function, innermost first, and whether it is true where ``node`` is reached."""
    for ancestor, child in branches(node, file):
        if isinstance(ancestor, cst.If | cst.IfExp | cst.While) and child is not ancestor.test:
            yield ancestor.test, child is ancestor.body
        elif isinstance(ancestor, cst.BooleanOperation) and child is ancestor.right:
            yield ancestor.left, isinstance(ancestor.operator, cst.And)
        elif isinstance(ancestor, cst.FunctionDef | cst.Lambda):
            return


def tests_above(node: cst.CSTNode, file: File) -> Iterator[cst.BaseExpression]:
    """Each test of an ``if`` that stands above ``node`` in its function, and that nothing passes where it is true."""
    statement = file.statement(node)
    for ancestor in (statement, *file.ancestors(statement)):
        if isinstance(ancestor, cst.FunctionDef | cst.Lambda):
            return
        for above in file.block(ancestor)[: file.layout.number(ancestor) or 0]:
            if isinstance(above, cst.If) and above.orelse is None and leaves(above.body):
                yield above.test
