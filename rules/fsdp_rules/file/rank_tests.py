"""Tests of the rank: whether one asks for it, and whether a value is only read on rank 0."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.ancestors import branches
from fsdp_rules.file.file import File

RANK_ZERO = re.compile(
    r"(not\s+(self\.|args\.|cfg\.)?(global_)?rank|[\w.]*\b(global_)?rank(\(\))?\s*(==|<=)\s*0"
    r"|0\s*==\s*[\w.]*\b(global_)?rank(\(\))?|[\w.]*get_rank\(\)\s*(==|<=)\s*0|[\w.]*\bRANK\s*==\s*0|not\s+[\w.]*get_rank\(\))"
)

#: Tests that are true on all other ranks.
RANK_ABOVE = re.compile(
    r"(self\.|args\.|cfg\.)?(global_)?rank|[\w.]*get_rank\(\)|[\w.]*\b(global_)?rank(\(\))?\s*(!=|>)\s*0"
    r"|[\w.]*get_rank\(\)\s*(!=|>)\s*0"
)

#: How a test asks for the rank, by what people call it.
RANK = re.compile(r"\b\w*rank\b|\bis_(main|master|rank|chief|local_main)\w*|\bmain_process\b", re.IGNORECASE)


def asks_for_rank(test: cst.BaseExpression, file: File) -> bool:
    """Whether ``test`` is true on some ranks alone."""
    return RANK.search(file.code(test)) is not None


def only_on_rank_zero(call: cst.Call, file: File) -> bool:
    """Whether ``call`` gives its value to a name that is read under ``if rank == 0`` alone, by itself or in a dict.

    The local rank does not count: there is one such process on each machine.
    """
    statement = file.parent(call)
    while isinstance(statement, cst.DictElement | cst.Dict):
        statement = file.parent(statement)
    if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
        return False
    target = statement.targets[0].target
    if not isinstance(target, cst.Name) or file.function(call) is None:
        return False
    scope, line = file.scope(call), file.span(statement).line
    uses = [use for use in file.uses(target.value) if file.scope(use).startswith(scope) and file.span(use).line > line]
    reads = [use for use in uses if not isinstance(file.statement(use), cst.Del)]
    return bool(reads) and all(is_under_rank_zero(read, file) for read in reads)


def is_under_rank_zero(node: cst.CSTNode, file: File) -> bool:
    """Whether a test of the same function lets rank 0 alone reach ``node``, or sends all others away above it."""
    for ancestor, inside in branches(node, file):
        if isinstance(ancestor, cst.IndentedBlock) and any(_leaves(one, file) for one in _above(inside, ancestor)):
            return True
        if isinstance(ancestor, cst.FunctionDef):
            return False
        if isinstance(ancestor, cst.If) and inside is ancestor.body and RANK_ZERO.fullmatch(file.code(ancestor.test)):
            return True
    return False


def _above(node: cst.CSTNode, block: cst.IndentedBlock) -> list[cst.If]:
    place = next((number for number, one in enumerate(block.body) if one is node), 0)
    return [one for one in block.body[:place] if isinstance(one, cst.If)]


def _leaves(test: cst.If, file: File) -> bool:
    """Whether the function ends in ``test`` on all ranks but 0."""
    last = test.body.body[-1]
    ends = isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Return)
    return ends and test.orelse is None and RANK_ABOVE.fullmatch(file.code(test.test)) is not None
