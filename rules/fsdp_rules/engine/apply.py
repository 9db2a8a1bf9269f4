"""Carries out the edits that rules asked for: one walk, once, all at the end."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar, cast

import libcst as cst

from fsdp_rules.engine.settled import settle
from fsdp_rules.file.comments import PRAGMA, comments, removed_line, telling_comments
from fsdp_rules.file.tree import Layout, text_of
from fsdp_rules.project.ignore_comments import MEANT
from fsdp_rules.verdict.diagnosis import Edit, InsertAfter, InsertBefore, Rebuild, Replace, ReplaceStatement

Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
Line = TypeVar("Line", bound=cst.CSTNode)


class EditConflictError(Exception):
    """Two rules want to rewrite the same node: a defect of the rules, never of the file."""


def apply_edits(layout: Layout, edits: Iterable[Edit], todos: dict[cst.CSTNode, list[str]]) -> cst.Module:
    """The module of ``layout`` with all ``edits`` made and a comment for each of ``todos`` above its statement.

    ``todos`` maps statement lines and compound statements to comment texts. Only the branches of the tree that change
    are walked. Raises :class:`EditConflictError`.
    """
    editor = _Editor(layout, edits, todos)
    editor.follow()
    return cst.ensure_type(layout.module.visit(editor), cst.Module)


class _Editor(cst.CSTTransformer):
    def __init__(self, layout: Layout, edits: Iterable[Edit], todos: dict[cst.CSTNode, list[str]]) -> None:
        super().__init__()
        self.layout = layout
        self.module = module = layout.module
        self.todos = todos
        self.expressions: dict[cst.CSTNode, Replace] = {}
        self.replaced: dict[cst.CSTNode, ReplaceStatement | Rebuild] = {}
        self.before: dict[cst.CSTNode, list[InsertBefore]] = defaultdict(list)
        self.after: dict[cst.CSTNode, list[InsertAfter]] = defaultdict(list)
        self.updated: dict[cst.CSTNode, cst.CSTNode] = {}
        self.owners: dict[cst.CSTNode, cst.CSTNode] = {}
        self.lost: dict[cst.CSTNode, list[str]] = defaultdict(list)
        self.branches: set[cst.CSTNode] = {module}
        for edit in edits:
            if isinstance(edit, InsertBefore):
                self.before[edit.node].append(edit)
            elif isinstance(edit, InsertAfter):
                self.after[edit.node].append(edit)
            else:
                table: dict[cst.CSTNode, Edit] = cast("dict[cst.CSTNode, Edit]", self._table(edit))
                if edit.node in table:
                    raise EditConflictError(f"two edits of {module.code_for_node(edit.node).strip()[:80]!r}")
                table[edit.node] = edit

    def follow(self) -> None:
        """Mark the branches that lead to an edit."""
        for node in (*self.expressions, *self.replaced, *self.before, *self.after, *self.todos):
            self.branches.add(node)
            self.branches.update(self.layout.ancestors(node))
        for node in self.expressions:
            self.owners[node] = next(owner for owner in self.layout.ancestors(node) if isinstance(owner, Statement))

    def on_visit(self, node: cst.CSTNode) -> bool:
        return node in self.branches

    def _table(self, edit: Replace | ReplaceStatement | Rebuild) -> object:
        return self.expressions if isinstance(edit, Replace) else self.replaced

    def code(self, node: cst.CSTNode) -> str:
        """The text of ``node`` with the edits inside it made; in parentheses where it would not stand alone."""
        text = text_of(self._current(node), self.module).strip()
        if "\n" in text and isinstance(node, cst.BaseExpression):
            try:
                ast.parse(text, mode="eval")
            except SyntaxError:
                return f"({text})"
        return text

    def _current(self, node: cst.CSTNode) -> cst.CSTNode:
        """``node`` with its edits; of a choice that a rule has made, the nodes of the module with theirs."""
        if node in self.updated:
            return self.updated[node]
        if node in self.expressions and isinstance(node, cst.Name):
            return cst.parse_expression(self.expressions[node].build(self.code))
        if isinstance(node, cst.IfExp):
            return node.with_changes(
                **{name: self._current(getattr(node, name)) for name in ("body", "test", "orelse")}
            )
        return node

    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]:
        new: cst.CSTNode | cst.FlattenSentinel[cst.CSTNode] = updated_node
        self.updated[original_node] = updated_node
        if original_node in self.expressions:
            new = self._expression(original_node, updated_node)
            self.updated[original_node] = cast("cst.CSTNode", new)
            return new
        if isinstance(original_node, cst.SimpleStatementLine):
            new = self._line(original_node, cst.ensure_type(updated_node, cst.SimpleStatementLine))
        elif isinstance(original_node, cst.SimpleStatementSuite):
            new = self._suite(original_node, cst.ensure_type(updated_node, cst.SimpleStatementSuite))
        elif isinstance(original_node, cst.BaseCompoundStatement) and self._touched(original_node):
            new = self._flatten(original_node, updated_node)
        elif isinstance(updated_node, cst.IndentedBlock | cst.Module):
            new = settle(updated_node)
        if original_node in self.lost and new is updated_node:
            new = _with_leading(new, _lines(self.lost[original_node]))
        if original_node in self.todos and isinstance(new, cst.BaseStatement):
            new = _with_leading(new, [*_lines(self.todos[original_node])])
        return new

    def _expression(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.BaseExpression:
        text = self._newlines(self.expressions[original].build(self.code))
        try:
            new = cst.parse_expression(text, config=self.module.config_for_parsing)
        except cst.ParserSyntaxError:
            new = cst.parse_expression(f"({text})", config=self.module.config_for_parsing)
        lost = self.lost[self.owners[original]]
        lost.extend(_beyond(telling_comments(original, self.layout), [*comments(new), *lost]))
        old = cast("cst.BaseExpression", updated)
        if old.lpar and not new.lpar:
            return new.with_changes(lpar=old.lpar, rpar=old.rpar)
        return new

    def _touched(self, node: cst.CSTNode) -> bool:
        return node in self.replaced or node in self.before or node in self.after

    def _line(
        self, original: cst.SimpleStatementLine, updated: cst.SimpleStatementLine, held: cst.CSTNode | None = None
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]:
        todos = [text for small in original.body for text in self.todos.get(small, ())]
        if not any(self._touched(small) for small in original.body):
            return _with_leading(updated, _lines(dict.fromkeys(todos))) if todos else updated
        statements: list[Statement] = []
        for small_original, small in zip(original.body, updated.body, strict=True):
            if self._touched(small_original):
                made, main = self._statements(small_original, small)
            else:
                made, main = [cst.SimpleStatementLine([_bare(small)])], 0
            if mine := self.todos.get(small_original, []):
                place = main if main < len(made) else 0
                made[place] = _with_leading(made[place], _lines(mine), own=False)
            statements.extend(made)
        lost = _kept(telling_comments(held or original, self.layout), statements)
        own = [line for line in updated.leading_lines if line.comment is not None]
        lost = _beyond(lost, (line.comment.value for line in own if line.comment is not None))
        trailing = updated.trailing_whitespace
        if trailing.comment is not None and _ends(trailing.comment.value, original, statements, main):
            for place in range(len(statements)) if MEANT.search(trailing.comment.value) else [main]:
                statement = statements[place]
                if isinstance(statement, cst.SimpleStatementLine):
                    statements[place] = statement.with_changes(trailing_whitespace=trailing)
            lost = _beyond(lost, [trailing.comment.value])
        lines = [*updated.leading_lines, *_lines(lost)]
        if not statements:
            return removed_line([*lines, *_lines(dict.fromkeys(todos))])
        statements[0] = _with_leading(statements[0], lines, own=False)
        return cst.FlattenSentinel(cast("Sequence[cst.CSTNode]", statements))

    def _suite(self, original: cst.SimpleStatementSuite, updated: cst.SimpleStatementSuite) -> cst.CSTNode:
        if not any(self._touched(small) for small in original.body):
            return updated
        end = original.trailing_whitespace
        line = cst.SimpleStatementLine(original.body, trailing_whitespace=end)
        result = self._line(line, cst.SimpleStatementLine(updated.body, trailing_whitespace=end), original)
        body = list(result) if isinstance(result, cst.FlattenSentinel) else [result]
        return settle(cst.IndentedBlock(cast("Sequence[cst.BaseStatement]", body)))

    def _flatten(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]:
        leading = list(getattr(updated, "leading_lines", ()))
        bare = updated.with_changes(leading_lines=()) if leading else updated
        statements, main = self._statements(original, bare)
        kept = [line.comment.value for line in leading if line.comment is not None]
        lost = _beyond(_kept(telling_comments(original, self.layout), statements), kept)
        lines = [*leading, *_lines(lost)]
        todos = _lines(self.todos.get(original, []))
        if not statements:
            return removed_line([*lines, *todos])
        place = main if main < len(statements) else 0
        statements[place] = _with_leading(statements[place], todos, own=False)
        statements[0] = _with_leading(statements[0], lines, own=False)
        return cst.FlattenSentinel(cast("Sequence[cst.CSTNode]", statements))

    def _statements(self, original: cst.CSTNode, updated: cst.CSTNode) -> tuple[list[Statement], int]:
        """What ``original`` becomes, and the place among it of the first statement that was not put before it."""
        statements: list[Statement] = []
        for text in dict.fromkeys(before.build(self.code) for before in self.before.get(original, ())):
            parsed = self._parse(text)
            statements += [*map(_spaced, parsed)] if statements else parsed
        inserted = len(statements)
        if original in self.replaced:
            edit = self.replaced[original]
            if isinstance(edit, Rebuild):
                statements.extend(edit.build(cast("cst.BaseCompoundStatement", updated), self.code))
            else:
                statements.extend(self._parse(edit.build(self.code)))
        elif isinstance(updated, cst.BaseSmallStatement):
            line = self.layout.parent(original)
            alone = isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1
            statements.append(cst.SimpleStatementLine([updated if alone else _bare(updated)]))
        else:
            statements.append(cast("cst.BaseCompoundStatement", updated))
        if len(statements) > inserted and any(isinstance(one, cst.FunctionDef) for one in statements[:inserted]):
            lines = [cst.EmptyLine(indent=False)] * 2
            statements[inserted] = _with_leading(statements[inserted], lines, own=False)
        for after in self.after.get(original, ()):
            statements.extend(self._parse(after.build(self.code)))
        return statements, inserted

    def _newlines(self, text: str) -> str:
        text = text.replace("\r\n", "\n")
        return text.replace("\n", self.module.default_newline)

    def _parse(self, text: str) -> list[Statement]:
        indent = self.module.default_indent
        if indent != "    ":
            text = "\n".join(_reindent(line, indent) for line in text.split("\n"))
        parsed = cst.parse_module(self._newlines(text), config=self.module.config_for_parsing)
        statements = [*parsed.body]
        if statements and parsed.header:
            statements[0] = _with_leading(statements[0], list(parsed.header))
        return statements


def _reindent(line: str, indent: str) -> str:
    stripped = line.lstrip(" ")
    depth, rest = divmod(len(line) - len(stripped), 4)
    return indent * depth + " " * rest + stripped


def _lines(texts: Iterable[str]) -> list[cst.EmptyLine]:
    return [cst.EmptyLine(comment=cst.Comment(text)) for text in texts]


def _kept(found: Iterable[str], statements: Iterable[cst.CSTNode]) -> list[str]:
    """The comments of a replaced statement that ``statements`` lack, without pragmas: these were about its lines."""
    kept = [comment for comment in found if not PRAGMA.match(comment)]
    return _beyond(kept, (comment for statement in statements for comment in comments(statement))) if kept else []


def _beyond(found: Iterable[str], present: Iterable[str]) -> list[str]:
    """What is in ``found`` more often than in ``present``, in order: two lines may say the same."""
    left = Counter(present)
    more: list[str] = []
    for text in found:
        if left[text]:
            left[text] -= 1
        else:
            more.append(text)
    return more


def _ends(comment: str, original: cst.SimpleStatementLine, statements: Sequence[Statement], main: int) -> bool:
    """Whether the comment at the end of a line still ends one after an edit."""
    if MEANT.search(comment):
        return True
    alone = len(original.body) == 1 and main < len(statements)
    return (len(statements) == 1 or alone) and isinstance(statements[main], cst.SimpleStatementLine)


def _spaced(statement: Statement) -> Statement:
    """``statement`` two lines below what is above it, where it is a function."""
    lines = [cst.EmptyLine(indent=False)] * 2
    return _with_leading(statement, lines, own=False) if isinstance(statement, cst.FunctionDef) else statement


def _bare(small: cst.BaseSmallStatement) -> cst.BaseSmallStatement:
    return small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)


def _with_leading(node: Line, lines: Sequence[cst.EmptyLine], own: bool = True) -> Line:
    existing = [*getattr(node, "leading_lines", ())]
    return node.with_changes(leading_lines=[*existing, *lines] if own else [*lines, *existing])
