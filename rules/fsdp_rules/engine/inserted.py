"""Statements that an earlier run has inserted already."""

from __future__ import annotations

from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Edit, InsertAfter, InsertBefore


def is_made(edit: Edit, file: File) -> bool:
    """Whether what ``edit`` inserts stands in its place, so that a second run has nothing to add."""
    if not isinstance(edit, InsertAfter | InsertBefore):
        return False
    block, place = file.layout.block(edit.node), file.layout.number(edit.node)
    if place is None:
        return False
    beside = place + (1 if isinstance(edit, InsertAfter) else -1)
    if not 0 <= beside < len(block):
        return False
    return _words(edit.build(file.code)) == _words(file.code(block[beside]))


def _words(text: str) -> str:
    return " ".join(text.split())
