"""A block from which statements were removed."""

from __future__ import annotations

from itertools import dropwhile

import libcst as cst

from fsdp_rules.file.comments import is_removed


def settle(block: cst.IndentedBlock | cst.Module) -> cst.IndentedBlock | cst.Module:
    """Hand the comments of removed statements to what follows them, and keep no block empty."""
    if not any(is_removed(entry) for entry in block.body):
        return block
    body: list[cst.BaseStatement] = []
    waiting: list[cst.EmptyLine] = []
    removed = False
    for entry in block.body:
        if is_removed(entry):
            waiting.extend(getattr(entry, "leading_lines", ()))
            removed = True
            continue
        if removed:
            own = list(getattr(entry, "leading_lines", ()))
            if not body:
                own = list(dropwhile(lambda line: line.comment is None, own))
            described = any(line.comment is not None for line in waiting)
            kept = waiting if described or not body or not own else []
            entry = entry.with_changes(leading_lines=[*kept, *own])
            waiting, removed = [], False
        body.append(entry)
    footer = [*[line for line in waiting if line.comment is not None], *block.footer]
    if not body and isinstance(block, cst.IndentedBlock):
        body = [cst.SimpleStatementLine([cst.Pass()], leading_lines=footer)]
        footer = []
    return block.with_changes(body=body, footer=footer)
