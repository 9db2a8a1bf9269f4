"""Statements that an earlier run has inserted already."""

from __future__ import annotations

from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Edit, InsertAfter, InsertBefore


def is_made(edit: Edit, file: File) -> bool:
    """Whether what ``edit`` inserts stands in its place, so that a second run has nothing to add."""
    if not isinstance(edit, InsertAfter | InsertBefore):
        return False
    block = file.layout.block(edit.node)
    place = block.index(edit.node) if edit.node in block else -1
    beside = place + (1 if isinstance(edit, InsertAfter) else -1)
    if place < 0 or not 0 <= beside < len(block):
        return False
    return _words(edit.build(file.code)) == _words(file.code(block[beside]))


def _words(text: str) -> str:
    return " ".join(text.split())
