"""Comments about what is left to do by hand: written once, counted in each later run, and their statements kept."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.engine.registry import all_rules, in_charge, speaker
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Role, Rule

TODO = re.compile(r"# TODO\(fsdp-migrate (FSDP\d+)\): (.*)")
#: What a comment leaves out: the rewrite that adds it moves the lines that a message names.
_LINE = re.compile(r" (?:in|on) line \d+")
#: What the further lines of such a comment begin with.
CONTINUED = "#     "
#: Narrower comments would be a word a line.
_NARROWEST = 40
ADVICE = "do what the comment says, then remove the comment"
Found = list[tuple[Rule, Diagnosis]]


def new_todos(file: File, diagnoses: Found) -> dict[cst.CSTNode, list[str]]:
    """The comments that ``diagnoses`` of level manual ask for, by the statement that each stands above."""
    todos: dict[cst.CSTNode, list[str]] = defaultdict(list)
    for rule, diagnosis in diagnoses:
        # What a comment says already is not written again, also where no rule has the id that the comment names.
        if diagnosis.level is not Level.MANUAL or diagnosis.advice == ADVICE:
            continue
        line = _commentable(file, diagnosis.node)
        small = file.statement(diagnosis.node)
        # Of several statements on a line each may end up on one of its own.
        statement = small if isinstance(line, cst.SimpleStatementLine) and small in line.body else line
        text = _text(rule, diagnosis)
        if text not in _comments(line, file) and text not in todos[statement]:
            todos[statement].append(text)
    return {
        statement: [line for text in texts for line in _wrapped(text, statement, file)]
        for statement, texts in todos.items()
        if texts
    }


def _wrapped(text: str, statement: cst.CSTNode, file: File) -> list[str]:
    """A comment as lines of the length that the project allows; one line where it says nothing."""
    if file.settings.line_length is None:
        return [text]
    width = max(file.settings.line_length - file.span(statement).column, _NARROWEST)
    return textwrap.wrap(text, width, subsequent_indent=CONTINUED, break_long_words=False, break_on_hyphens=False)


def with_standing_todos(file: File, diagnoses: Found) -> Found:
    """``diagnoses`` without what would edit a statement under such a comment, and with what the comments say."""
    standing = _standing(file)
    if not standing:
        return diagnoses
    kept: list[tuple[Rule, Diagnosis]] = []
    said: set[tuple[cst.CSTNode, str]] = set()
    for rule, diagnosis in diagnoses:
        around = next((entry for entry in standing if _is_in(diagnosis.node, entry, file)), None)
        edited = any(_is_in(edit.node, entry, file) for edit in diagnosis.edits for entry in standing)
        if around is None and not edited:
            kept.append((rule, diagnosis))
        elif around is not None and _text(rule, diagnosis) in standing[around]:
            said.add((around, _text(rule, diagnosis)))
            kept.append((rule, diagnosis))
        elif diagnosis.level is Level.INFO and not diagnosis.edits:
            kept.append((rule, diagnosis))
    for statement, texts in standing.items():
        for text in texts:
            match = TODO.match(text)
            if match is not None and (statement, text) not in said:
                node = statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else statement
                found = Diagnosis(node, Level.MANUAL, match.group(2), ADVICE)
                if file.settings.enabled(match.group(1)):
                    kept.append((_rule(match.group(1)), found))
    return kept


def _standing(file: File) -> dict[cst.CSTNode, list[str]]:
    """The statements with such a comment above them, and their comments."""
    if "TODO(fsdp-migrate" not in file.text:
        return {}
    kinds: Iterable[type[cst.CSTNode]] = (cst.SimpleStatementLine, *_COMPOUND)
    found = {
        node: [text for text in _comments(node, file) if TODO.match(text)]
        for kind in kinds
        for node in file.nodes(kind)
    }
    return {node: texts for node, texts in found.items() if texts}


_COMPOUND = (cst.If, cst.For, cst.While, cst.Try, cst.With, cst.FunctionDef, cst.ClassDef, cst.Match)


def _comments(statement: cst.CSTNode, file: File) -> list[str]:
    lines = list(getattr(statement, "leading_lines", ()))
    if file.module.body and statement is file.module.body[0]:
        lines += file.module.header
    found: list[str] = []
    for line in lines:
        if line.comment is None:
            continue
        if found and TODO.match(found[-1]) and line.comment.value.startswith(CONTINUED):
            found[-1] += f" {line.comment.value.removeprefix(CONTINUED)}"
        else:
            found.append(line.comment.value)
    return found


def _is_in(node: cst.CSTNode, statement: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` is in ``statement``; of a definition, in what stands above its body."""
    if node is statement:
        return True
    path = [node, *file.ancestors(node)]
    if statement not in path:
        return False
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return path[path.index(statement) - 1] is not statement.body
    return True


def _rule(rule_id: str) -> Rule:
    known = any(rule.id == rule_id for rule in all_rules())
    return speaker(rule_id) if known else in_charge(Role.UNKNOWN)


def _text(rule: Rule, diagnosis: Diagnosis) -> str:
    message = _LINE.sub("", " ".join(diagnosis.message.split()))
    return f"# TODO(fsdp-migrate {rule.id}): {message}"


def _commentable(file: File, node: cst.CSTNode) -> cst.CSTNode:
    current: cst.CSTNode | None = node
    while current is not None:
        if isinstance(current, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            return current
        current = file.parent(current)
    return file.module.body[0]
