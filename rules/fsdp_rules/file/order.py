"""What has surely run before a place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import libcst as cst

from fsdp_rules.file.file import Binding, File


def runs_before(statement: cst.CSTNode, place: cst.CSTNode, file: File) -> bool:
    """Whether ``statement`` has run whenever ``place`` runs, both in one function."""
    return file.scope(statement) == file.scope(place) and any(one is statement for one in run_before(place, file))


def run_before(place: cst.CSTNode, file: File) -> Iterator[cst.CSTNode]:
    """The statements that have run whenever ``place`` runs, as they are above it or above what it is in."""
    around = {file.statement(place), *file.ancestors(place)}
    for ancestor in around:
        if isinstance(ancestor, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            yield from takewhile(lambda one: one not in around, file.block(ancestor))


def latest_binding(node: cst.BaseExpression, place: cst.CSTNode, file: File) -> Binding | None:
    """The assignment that certainly gives the plain name ``node`` the value that it has at ``place``."""
    found = file.binding(node)
    if found is not None or not isinstance(node, cst.Name):
        return found
    line = file.span(place).line
    bindings = file.bindings.found.get((file.scope(place), node.value), [])
    before = [entry for entry in bindings if file.span(entry.statement).line < line]
    last = max(before, key=lambda entry: file.span(entry.statement).line, default=None)
    if last is None or last.value is None or not runs_before(last.statement, place, file):
        return None
    return last
