"""Tests of the rank: whether one asks for it, and whether a value is only read on rank 0."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.ancestors import tests_above, tests_around
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
    tests = (*tests_around(node, file), *((test, False) for test in tests_above(node, file)))
    return any((RANK_ZERO if truth else RANK_ABOVE).fullmatch(file.code(test)) for test, truth in tests)
