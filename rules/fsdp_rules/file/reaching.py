"""Which statements may give a name the value that it has where it is read, and what has surely run before a place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

import libcst as cst

from fsdp_rules.file.file import Binding, File
from fsdp_rules.file.tree import statements_of


def definitions(name: cst.Name, file: File) -> list[cst.CSTNode] | None:
    """The statements that may give ``name`` its value where it is read, or None where it comes from elsewhere.

    Loops count as if they ran once; the parameter itself is among them where no statement replaces it for certain.
    """
    scope = file.scope(name)
    bound = file.bindings.found.get((scope, name.value))
    if not bound:
        binding = file.binding(name)
        return [binding.statement] if binding is not None else None
    found: list[cst.CSTNode] = []
    statement = file.statement(name)
    while True:
        block = file.block(statement)
        above = block[: file.layout.number(statement) or 0]
        if _last(above, name.value, found, file):
            break
        owner = next(file.ancestors(statement), None)
        while owner is not None and not isinstance(owner, cst.BaseCompoundStatement):
            owner = file.parent(owner)
        if owner is None or isinstance(owner, cst.FunctionDef | cst.ClassDef):
            parameters = [entry.statement for entry in bound if isinstance(entry.statement, cst.Param)]
            if not parameters:
                return None
            found += parameters
            break
        statement = _outermost(owner, file)
    return found if all(isinstance(entry, cst.Assign | cst.AnnAssign | cst.Param) for entry in found) else None


def _outermost(owner: cst.CSTNode, file: File) -> cst.CSTNode:
    """The ``if`` that an ``elif`` or ``else`` belongs to."""
    parent = file.parent(owner)
    while isinstance(owner, cst.If) and isinstance(parent, cst.If) and parent.orelse is owner:
        owner, parent = parent, file.parent(parent)
    return owner


def _last(statements: list[cst.CSTNode], name: str, found: list[cst.CSTNode], file: File) -> bool:
    """Add what binds ``name`` last in ``statements``; whether something does on every way through."""
    for statement in reversed(statements):
        if isinstance(statement, cst.If):
            if _branches(statement, name, found, file):
                return True
        elif isinstance(statement, cst.With):
            if _last(statements_of(statement.body.body), name, found, file):
                return True
        elif _binds(statement, name, file):
            found.append(statement)
            return True
    return False


def _branches(statement: cst.If, name: str, found: list[cst.CSTNode], file: File) -> bool:
    """Whether every arm binds ``name``, those that leave the function or the loop aside."""
    certain = _arm(statement.body, name, found, file)
    orelse = statement.orelse
    if isinstance(orelse, cst.If):
        return _branches(orelse, name, found, file) and certain
    if isinstance(orelse, cst.Else):
        return _arm(orelse.body, name, found, file) and certain
    return False


def _arm(body: cst.BaseSuite, name: str, found: list[cst.CSTNode], file: File) -> bool:
    statements = statements_of(body.body)
    if statements and isinstance(statements[-1], cst.Raise | cst.Return | cst.Continue | cst.Break):
        return True
    return _last(statements, name, found, file)


def _binds(statement: cst.CSTNode, name: str, file: File) -> bool:
    """Whether ``statement`` binds ``name``; a compound one (a loop, a try) does where anything in it does."""
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return statement.name.value == name
    scope = file.scope(statement)
    return any(
        statement is entry.statement or statement in file.ancestors(entry.statement)
        for entry in file.bindings.found.get((scope, name), ())
    )


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
