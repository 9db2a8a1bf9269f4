"""What a rule says about a node, and the edits that it asks for. Nothing here changes a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.tree import Code
from fsdp_rules.project.configured import Slot
from fsdp_rules.verdict.finding import Level

Build = Callable[[Code], str]


@dataclass(frozen=True, eq=False)
class Replace:
    """An expression becomes the expression that ``build`` returns as text."""

    node: cst.BaseExpression
    build: Build


@dataclass(frozen=True, eq=False)
class ReplaceStatement:
    """A small or compound statement becomes the statements that ``build`` returns as text ("" removes it)."""

    node: cst.CSTNode
    build: Build


@dataclass(frozen=True, eq=False)
class InsertBefore:
    """Statements go in front of a small or compound statement."""

    node: cst.CSTNode
    build: Build


@dataclass(frozen=True, eq=False)
class InsertAfter:
    """Statements go behind a small or compound statement."""

    node: cst.CSTNode
    build: Build


@dataclass(frozen=True, eq=False)
class Rebuild:
    """A compound statement becomes the statements that ``build`` makes of its tree, edits inside it already made.

    For a statement whose block is kept: as a tree it keeps every byte, at whatever depth it ends up, where text would
    have to be indented again, multi-line strings included.
    """

    node: cst.BaseCompoundStatement
    build: Callable[[cst.BaseCompoundStatement, Code], Sequence[cst.SimpleStatementLine | cst.BaseCompoundStatement]]


Edit = Replace | ReplaceStatement | Rebuild | InsertBefore | InsertAfter


@dataclass(frozen=True, eq=False)
class Taken:
    """The expression ``node`` takes what ``slot`` gives, for a model on this kind of device, with a mesh or without.

    ``writes``: it gives ``slot`` a value instead, in FSDP2's form.
    """

    node: cst.CSTNode
    slot: Slot
    device: str = ""
    mesh_given: bool = False
    writes: bool = False


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """One verdict of a rule about ``node``.

    ``claims`` are the nodes whose FSDP1 references this verdict accounts for, beside ``node`` itself; a reference
    that no verdict accounts for is reported by the engine. ``consumes`` are assignments (statement, name) that go if
    the output no longer reads the name. ``rule`` is the id of the rule that speaks, where it is not the visiting one.
    ``takes`` are the values that the edits need in FSDP2's form, which other definitions give, ``gives`` the
    definitions that the edits bring into that form. ``edit`` is the name of the edits that belong together, where
    other forms are asked for.
    """

    node: cst.CSTNode
    level: Level
    message: str
    advice: str = ""
    edits: tuple[Edit, ...] = ()
    claims: tuple[cst.CSTNode, ...] = ()
    consumes: tuple[tuple[cst.CSTNode, str], ...] = ()
    rule: str = ""
    takes: tuple[Taken, ...] = ()
    gives: tuple[Slot, ...] = ()
    edit: str = ""


def remove(statement: cst.CSTNode) -> ReplaceStatement:
    """The edit that deletes a statement."""
    return ReplaceStatement(statement, lambda code: "")
