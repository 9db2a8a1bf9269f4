"""What has surely run before a place."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import Binding, File


def runs_before(statement: cst.CSTNode, place: cst.CSTNode, file: File) -> bool:
    """Whether ``statement`` has run whenever ``place`` runs, both in one function."""
    if file.scope(statement) != file.scope(place):
        return False
    around = {file.statement(place), *file.ancestors(place)}
    for ancestor in around:
        if not isinstance(ancestor, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            continue
        for sibling in file.block(ancestor):
            if sibling in around:
                break
            if sibling is statement:
                return True
    return False


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
