"""Blocks whose statements take the place of the block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import libcst as cst

from fsdp_rules.file.comments import removed_line
from fsdp_rules.file.tree import Code

Statements = Sequence[cst.SimpleStatementLine | cst.BaseCompoundStatement]


def dissolved() -> Callable[[cst.BaseCompoundStatement, Code], Statements]:
    """What makes the statements of a block out of it; comments at its end are kept."""

    def build(updated: cst.BaseCompoundStatement, code: Code) -> Statements:
        body = updated.body
        if isinstance(body, cst.SimpleStatementSuite):
            return [cst.SimpleStatementLine(body.body, trailing_whitespace=body.trailing_whitespace)]
        comments = [line for line in cst.ensure_type(body, cst.IndentedBlock).footer if line.comment is not None]
        last = [removed_line(comments)] if comments else []
        return [*cast("Statements", body.body), *last]

    return build
