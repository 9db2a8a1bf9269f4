"""The arms of tests: which of two places runs without the other, and what may not run at all."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.ancestors import branches
from fsdp_rules.file.file import File

UNITS = re.compile(r"isinstance\(\w+, ([\w.]+\.)?FSDPModule\)")
#: What a loop that shards units asks of each, which holds for the model itself.
ITSELF = re.compile(r"(\w+) is [^\s()]+( or .*)?", re.DOTALL)
CONDITIONAL = (cst.If, cst.Else, cst.IfExp, cst.BooleanOperation, cst.ExceptHandler, cst.MatchCase)


def is_conditional(entry: cst.CSTNode, file: File) -> bool:
    """Whether what is in ``entry`` may not run; what an else is of says so itself."""
    is_of_test = isinstance(entry, cst.Else) and isinstance(file.parent(entry), cst.If)
    return isinstance(entry, CONDITIONAL) and not is_of_test and not _asks_for_units(entry, file)


def both_arms(entry: cst.CSTNode) -> tuple[cst.CSTNode | None, ...]:
    """The arms of a test of which one runs; None, which never does, where there is none."""
    return (entry.body, entry.orelse) if isinstance(entry, cst.If | cst.IfExp) else (None,)


def _asks_for_units(branch: cst.CSTNode, file: File) -> bool:
    """Whether ``branch`` runs for every unit of a sharded model, as the loops do that shard or reshard them."""
    test = file.code(branch.test) if isinstance(branch, cst.If) else ""
    itself = ITSELF.fullmatch(test)
    loop = next((one for one in file.ancestors(branch) if isinstance(one, cst.For)), None)
    is_unit = itself is not None and loop is not None and file.code(loop.target) == itself[1]
    return is_unit or UNITS.fullmatch(test) is not None


def excludes(node: cst.CSTNode, place: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` and ``place`` stand in two arms of one test."""
    mine = dict(_arms(place, file))
    return any(mine.get(test, arm) is not arm for test, arm in _arms(node, file))


def _arms(node: cst.CSTNode, file: File) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    for ancestor, child in branches(node, file):
        if isinstance(ancestor, cst.If | cst.IfExp) and child in (ancestor.body, ancestor.orelse):
            yield ancestor, child
