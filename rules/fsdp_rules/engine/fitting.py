"""Breaks lines that a rewrite has written and that are longer than the project allows."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Set

from fsdp_rules.file.comments import PRAGMA

#: The longest line that is written where the project does not say. What is built is seldom longer than 100, and a line
#: that is a little longer reads better than one that is broken at a bracket inside of others.
LONGEST = 120
#: A line that is a whole condition, or gives one value, with what stands around that.
WHOLE = re.compile(r"(?P<head>(?:el)?if |while |return |[\w.]+ = )(?P<value>.*?)(?P<end>:?)")
#: The content of a bracket that is worth lines where another bracket has more.
WIDE = 10
#: More rounds than any statement has levels of brackets worth breaking.
ROUNDS = 6


def fitted(output: str, before: str, limit: int, left: Set[str] = frozenset()) -> str:
    """``output`` with each line that ``before`` lacks, and that is longer than ``limit``, broken at a bracket.

    No line that has one of the texts ``left`` in it is broken: each is of code that keeps every byte.

    A condition, or a value with one, is put in parentheses, an operand to a line. Else the content of the last
    outermost bracket moves to a line by itself, or an entry to a line. A line that has none is left as it is, and so is
    one with a comment for a tool, and everything where the result would not mean the same.
    """
    known = {line.strip() for line in before.splitlines()}
    text = output
    for _ in range(ROUNDS):
        broken = _broken(text, known, limit, left)
        if broken == text:
            break
        text = broken
    if text == output:
        return output
    try:
        same = ast.dump(ast.parse(text)) == ast.dump(ast.parse(output))
    except (SyntaxError, ValueError, RecursionError):
        return output
    return text if same else output


def _broken(text: str, known: set[str], limit: int, left: Set[str]) -> str:
    """``text`` with every line that is too long broken once."""
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = text.split(newline)
    # With several kinds of newlines, what is between two of one kind is no line.
    if any("\n" in line or "\r" in line for line in lines):
        return text
    long = {
        number
        for number, line in enumerate(lines, start=1)
        if len(line) > limit and line.strip() and _is_new(line, known) and not any(one in line for one in left)
    }
    if not long:
        return text
    brackets = _brackets(text, long)
    for number in sorted(long, reverse=True):
        line = lines[number - 1]
        margin = line[: len(line) - len(line.lstrip())]
        if parts := _operands(line.strip()):
            lines[number - 1 : number] = [margin + part for part in parts]
            continue
        if number not in brackets:
            continue
        opened, closed = brackets[number]
        inside = line[opened + 1 : closed].strip()
        content = [inside] if len(margin) + 4 + len(inside) <= limit else _parts(inside)
        lines[number - 1 : number] = [
            line[: opened + 1],
            *(f"{margin}    {part}" for part in content),
            margin + line[closed:],
        ]
    return newline.join(lines)


def _parts(inside: str) -> list[str]:
    """The content of a bracket, a line to each entry, or to each clause of a comprehension."""
    commas: list[int] = []
    clauses: list[int] = []
    depth = strings = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(f"({inside})").readline):
            strings += {"FSTRING_START": 1, "FSTRING_END": -1}.get(tokenize.tok_name[token.type], 0)
            if strings:
                continue
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(token.string, 0)
            if depth == 1 and token.string == "lambda":
                return [inside]
            if depth == 1 and token.string == ",":
                commas.append(token.start[1] - 1)
            if depth == 1 and token.string in ("for", "async") and (not clauses or token.string == "for"):
                clauses.append(token.start[1] - 1)
            if depth == 1 and token.string == "if" and clauses:
                clauses.append(token.start[1] - 1)
    except (tokenize.TokenError, SyntaxError):
        return [inside]
    if clauses:
        return [inside[start:end].strip() for start, end in zip([0, *clauses], [*clauses, len(inside)], strict=True)]
    if not commas:
        return [inside]
    starts = [0, *(comma + 1 for comma in commas)]
    parts = [inside[start:end].strip() for start, end in zip(starts, [*commas, len(inside)], strict=True)]
    return [f"{part}," for part in parts if part]


def _operands(line: str) -> list[str]:
    """``line`` in parentheses with a line for each operand, [] where it is no condition and has none."""
    found = WHOLE.fullmatch(line)
    if found is None or (found["end"] == ":") != found["head"].endswith(("if ", "while ")):
        return []
    value = found["value"]
    try:
        node = ast.parse(value, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return []
    if not isinstance(node, ast.BoolOp | ast.IfExp) or not value.isascii():
        return []
    # What stands before an operand is the operator, which may follow brackets of the operand before.
    nodes = node.values if isinstance(node, ast.BoolOp) else [node.body, node.test, node.orelse]
    operators = ("and", "or") if isinstance(node, ast.BoolOp) else ("if", "else")
    starts = [0, *(_operator(value, one.col_offset, operators) for one in nodes[1:])]
    parts = [value[start:end].strip() for start, end in zip(starts, [*starts[1:], len(value)], strict=True)]
    return [f"{found['head']}(", *(f"    {part}" for part in parts), f"){found['end']}"]


def _operator(value: str, column: int, operators: tuple[str, ...]) -> int:
    """Where the last of the ``operators`` above ``column`` begins."""
    return max(value.rfind(f" {operator} ", 0, column + 1) for operator in operators) + 1


def _is_new(line: str, known: set[str]) -> bool:
    """Whether ``line`` is code of the rewrite, without a comment that has to be where its statement begins."""
    if line.strip() in known or line.lstrip().startswith("#"):
        return False
    return PRAGMA.search(line) is None and "# fsdp-migrate:" not in line


def _brackets(text: str, wanted: set[int]) -> dict[int, tuple[int, int]]:
    """Of each wanted line the columns of its last outermost bracket with something in it, both ends on that line."""
    found: dict[int, tuple[int, int, int]] = {}
    opened: list[tuple[int, int]] = []
    strings = 0
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            # Newer Pythons give tokens for what is inside an f-string, which older ones cannot have on several lines.
            strings += {"FSTRING_START": 1, "FSTRING_END": -1}.get(tokenize.tok_name[token.type], 0)
            if strings or token.type != tokenize.OP or token.string not in "()[]{}":
                continue
            if token.string in "([{":
                opened.append(token.start)
                continue
            line, column = opened.pop()
            depth = len(opened)
            if line != token.start[0] or line not in wanted or token.start[1] - column < 2:
                continue
            width = token.start[1] - column
            known = found.get(line)
            # An index behind a call is not worth a line.
            worth = known is None or width >= WIDE or width > known[1] - known[0]
            if known is None or depth < known[2] or (depth == known[2] and worth):
                found[line] = (column, token.start[1], depth)
    except (tokenize.TokenError, SyntaxError, IndexError):
        return {}
    return {line: (start, end) for line, (start, end, _) in found.items()}
