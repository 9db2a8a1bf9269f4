"""The text and the tree of one import, and what visits them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import cast

import libcst as cst

from fsdp_rules.file.comments import lines_of_comments
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import alias_text, import_text
from fsdp_rules.file.searching import find
from fsdp_rules.file.tree import dotted
from fsdp_rules.project.gates import statements

#: Marks where an FSDP1 import stood, which is where FSDP2's belongs.
FSDP1_IMPORT = "fsdp1_import"


class StatementTransformer(cst.CSTTransformer):
    """Looks at statements, not into them."""

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> bool:
        return False


def visited(before: File, module: cst.Module, visitor: cst.CSTTransformer, word: str) -> cst.Module:
    """``module``, an edited version of ``before``, with those of its statements visited that have ``word`` in them."""
    body: list[cst.BaseStatement] = []
    for statement in module.body:
        new = statement.visit(visitor) if word in before.printer.text(statement) else statement
        body.extend(cast("Sequence[cst.BaseStatement]", new if isinstance(new, cst.FlattenSentinel) else [new]))
    return module.with_changes(body=body)


def bound_name(statement: str) -> str:
    return statement.split(" as ")[-1].split(" import ")[-1].removeprefix("import ").strip().partition(".")[0]


def regenerated(
    line: cst.SimpleStatementLine,
    node: cst.ImportFrom,
    module: str,
    kept: Sequence[cst.ImportAlias],
    names: list[str] | None = None,
) -> cst.SimpleStatementLine:
    """``line`` with an import of ``names`` (of ``kept`` alone by default) in its place and in its style.

    Comments beside names are moved above it, those beside names that are gone left out.
    """
    long = "\n" in cst.Module([]).code_for_node(node)
    stays = {alias.evaluated_name for alias in kept}
    beside = {_comment_beside(alias) for alias in find(node, cst.ImportAlias) if alias.evaluated_name not in stays}
    above = [entry for entry in lines_of_comments(node) if entry.comment is None or entry.comment.value not in beside]
    spelled = names if names is not None else [alias_text(alias) for alias in kept]
    return line.with_changes(body=[from_import(module, spelled, long)], leading_lines=[*line.leading_lines, *above])


def _comment_beside(alias: cst.ImportAlias) -> str | None:
    """The comment on the line of ``alias``."""
    gap = alias.comma.whitespace_after if isinstance(alias.comma, cst.Comma) else None
    comment = gap.first_line.comment if isinstance(gap, cst.ParenthesizedWhitespace) else None
    return comment.value if comment is not None else None


def from_import(module: str, names: list[str], long: bool = False) -> cst.ImportFrom:
    text = import_text(module, names, long)
    line = cst.ensure_type(cst.parse_statement(text), cst.SimpleStatementLine)
    return cst.ensure_type(line.body[0], cst.ImportFrom)


def small(entry: cst.BaseStatement) -> cst.CSTNode | None:
    return entry.body[0] if isinstance(entry, cst.SimpleStatementLine) and len(entry.body) == 1 else None


def module_of(node: cst.CSTNode | None) -> str:
    if isinstance(node, cst.ImportFrom) and node.module is not None and not node.relative:
        return dotted(node.module) or ""
    return ""


def plain_import(statement: str) -> cst.Import:
    line = cst.ensure_type(cst.parse_statement(statement), cst.SimpleStatementLine)
    return cst.ensure_type(line.body[0], cst.Import)


def plain_name(entry: cst.BaseStatement) -> str:
    if isinstance(entry, cst.SimpleStatementLine) and entry.body and isinstance(entry.body[0], cst.Import):
        return entry.body[0].names[0].evaluated_name
    return ""


def bound_names(before: File, module: cst.Module) -> set[str]:
    """The names that the imports of ``module``, an edited version of ``before``, bind."""
    texts = [text for statement in module.body if "import" in (text := before.printer.text(statement))]
    nodes = [node for text in texts for node in statements(ast.parse(text))]
    imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(alias.asname or alias.name).partition(".")[0] for node in imports for alias in node.names}
