"""Takes imports, definitions and assignments out of a module that nothing in it needs any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

_Definition = TypeVar("_Definition", cst.FunctionDef, cst.ClassDef)


def without(text: str, imports: Collection[str], definitions: Collection[str], lines: Collection[int]) -> str:
    """``text`` without imports of these names, the definitions of these qualified names and what is on these lines."""
    if not (imports or definitions or lines):
        return text
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    return wrapper.visit(_Remover(imports, definitions, lines)).code


class _Remover(cst.CSTTransformer):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, imports: Collection[str], definitions: Collection[str], lines: Collection[int]) -> None:
        super().__init__()
        self._imports = imports
        self._definitions = definitions
        self._lines = lines
        self._scopes: list[str] = []
        self._guards = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._scopes.append(node.name.value)

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef | cst.RemovalSentinel:
        return self._defined(updated_node)

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._scopes.append(node.name.value)

    def leave_ClassDef(
        self, original_node: cst.ClassDef, updated_node: cst.ClassDef
    ) -> cst.ClassDef | cst.RemovalSentinel:
        return self._defined(updated_node)

    def visit_Try(self, node: cst.Try) -> None:
        self._guards += 1

    def leave_Try(self, original_node: cst.Try, updated_node: cst.Try) -> cst.Try:
        self._guards -= 1
        return updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        line = self.get_metadata(PositionProvider, original_node).start.line
        first = updated_node.body[0]
        if line in self._lines and len(updated_node.body) == 1:
            return updated_node.with_changes(body=())
        if isinstance(first, cst.Assign) and isinstance(name := first.targets[0].target, cst.Name):
            is_gone = ".".join([*self._scopes, name.value]) in self._definitions
            return updated_node.with_changes(body=()) if is_gone else updated_node
        if len(updated_node.body) > 1 or not isinstance(first, cst.Import | cst.ImportFrom):
            return updated_node
        now = self._imported(first)
        return updated_node.with_changes(body=() if now is None else (now,))

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return updated_node.with_changes(body=_settled(updated_node.body))

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return updated_node.with_changes(body=_settled(updated_node.body) or [cst.SimpleStatementLine([cst.Pass()])])

    def _defined(self, node: _Definition) -> _Definition | cst.RemovalSentinel:
        name = ".".join(self._scopes)
        self._scopes.pop()
        return cst.RemoveFromParent() if name in self._definitions else node

    def _imported(self, node: cst.Import | cst.ImportFrom) -> cst.Import | cst.ImportFrom | None:
        """``node`` without the names that go; None where nothing is left of it."""
        if self._guards or isinstance(node.names, cst.ImportStar):
            return node
        kept = [one for one in node.names if _bound(one) not in self._imports]
        if len(kept) == len(node.names):
            return node
        if not kept:
            return None
        kept[-1] = kept[-1].with_changes(comma=node.names[-1].comma)
        return node.with_changes(names=kept)


def _settled(body: Sequence[cst.BaseStatement]) -> list[cst.BaseStatement]:
    """``body`` without its emptied lines, whose comments and blank lines go to what follows them."""
    kept: list[cst.BaseStatement] = []
    waiting: list[cst.EmptyLine] = []
    for entry in body:
        if isinstance(entry, cst.SimpleStatementLine) and not entry.body:
            waiting = waiting or [*entry.leading_lines]
            continue
        if waiting and not getattr(entry, "leading_lines", ()):
            entry = entry.with_changes(leading_lines=waiting)
        waiting = []
        kept.append(entry)
    return kept


def _bound(alias: cst.ImportAlias) -> str:
    return alias.evaluated_alias or alias.evaluated_name.partition(".")[0]
