"""What a function imports for itself: where the output reads it further up, the import moves to its start."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Set

import libcst as cst

from fsdp_rules.engine.import_statements import bound_name, small
from fsdp_rules.file.file import File
from fsdp_rules.file.several_imports import import_in_a_function
from fsdp_rules.project.public_names import FUNCTIONS
from fsdp_rules.project.walking import children, walk

#: A function by the names of the scopes that it is in, what it imports, and whether that is read above the import
#: rather than after the branch that has it.
Late = tuple[str, str, bool]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody")


def in_time(before: File, module: cst.Module) -> cst.Module:
    """``module``, an edited version of ``before``, with imports in functions above all that reads what they bind.

    Where ``before`` reads a name too early itself, nothing moves.
    """
    names = before.references.wanted_imports.keys() & _imported(before.tree)
    if not names:
        return module
    late = set(_late(ast.parse(before.printer.code(module)), names)) - set(_late(before.tree, names))
    return cst.ensure_type(module.visit(_Mover(late, before)), cst.Module) if late else module


def _imported(tree: ast.Module) -> Set[str]:
    """The names that functions import for themselves."""
    return {name for node in walk(tree) if isinstance(node, _FUNCTIONS) for name, _ in _imports(node)}


def _late(tree: ast.AST, names: Collection[str], scope: str = "") -> Iterator[Late]:
    for node in children(tree):
        inside = f"{scope}.{node.name}" if isinstance(node, (*_FUNCTIONS, ast.ClassDef)) else scope
        yield from _late(node, names, inside)
        if isinstance(node, _FUNCTIONS):
            reads = [one for one in _own(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)]
            for name, block in _imports(node):
                start, end = block[0].lineno, block[-1].end_lineno or 0
                is_whole = block[-1] is node.body[-1]
                lines = [one.lineno for one in reads if one.id == name] if name in names else []
                yield from ((inside, name, at < start) for at in lines if at < start or (at > end and not is_whole))


def _imports(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, list[ast.stmt]]]:
    """The names that the function itself imports, each with the import and what comes after it in its block."""
    for around in (node, *_own(node)):
        blocks = (getattr(around, name, None) for name in _BLOCKS)
        for block in (one for one in blocks if isinstance(one, list)):
            for place, one in enumerate(block):
                if isinstance(one, ast.Import | ast.ImportFrom):
                    yield from ((alias.asname or alias.name.partition(".")[0], block[place:]) for alias in one.names)


def _own(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a function, and in no function in it."""
    for one in children(node):
        yield one
        if not isinstance(one, FUNCTIONS):
            yield from _own(one)


class _Mover(cst.CSTTransformer):
    def __init__(self, late: Set[Late], before: File) -> None:
        self._late, self._before = late, before
        self._scope: list[str] = []

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._scope.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        self._scope.pop()
        return updated_node

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._scope.append(node.name.value)

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        scope = "".join(f".{name}" for name in self._scope)
        self._scope.pop()
        names = list(dict.fromkeys(name for inside, name, _ in sorted(self._late) if inside == scope))
        block = updated_node.body
        if not names or not isinstance(block, cst.IndentedBlock):
            return updated_node
        moved = [one for one in block.body if _binds(one) in names]
        rest = [one for one in block.body if one not in moved]
        texts = [import_in_a_function(self._before.tree, name) for name in names if name not in map(_binds, moved)]
        new = [*moved, *(cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine) for text in texts)]
        start = 0 if updated_node.get_docstring() is None else 1
        return updated_node.with_changes(body=block.with_changes(body=[*rest[:start], *new, *rest[start:]]))


def _binds(statement: cst.BaseStatement) -> str:
    """The one name that a statement imports; "" if it is none, or more than that."""
    node = small(statement)
    if isinstance(node, cst.Import) and len(node.names) == 1:
        return bound_name(cst.Module([]).code_for_node(node))
    if isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar) and len(node.names) == 1:
        return node.names[0].evaluated_alias or node.names[0].evaluated_name
    return ""
