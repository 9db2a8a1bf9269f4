"""Places of :mod:`ast`, which counts bytes, in the characters of a file, and the text that stands there."""

from __future__ import annotations

from fsdp_rules.ir.operations import At
from fsdp_rules.project.value_facts import Position


def position_of(at: At, lines: list[bytes]) -> Position:
    """``at`` in characters."""
    return (
        at.line,
        _characters(lines, at.line, at.column),
        at.end_line,
        _characters(lines, at.end_line, at.end_column),
    )


def text_at(at: At, lines: list[bytes]) -> str:
    """What stands at ``at``, of several lines the first."""
    end = at.end_column if at.end_line == at.line else None
    return lines[at.line - 1][at.column : end].decode("utf-8", "replace")


def dotted_at(at: At, lines: list[bytes]) -> str:
    """The dotted name that stands at ``at``; empty where it is something else."""
    text = text_at(at, lines) if at.line == at.end_line else ""
    return text if all(map(str.isidentifier, text.split("."))) else ""


def _characters(lines: list[bytes], line: int, column: int) -> int:
    text = lines[line - 1] if 0 < line <= len(lines) else b""
    return column if text.isascii() else len(text[:column].decode("utf-8", "ignore"))
