"""Statements that one rule leaves to a human and another one would edit: nothing in them changes."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fsdp_rules.engine.kept_code import UNCHANGED, said_once
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis, Edit, Rebuild, Replace, ReplaceStatement
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

Found = list[tuple[Rule, Diagnosis]]


def uncontested(file: File, found: Found) -> Found:
    """``found``, where what a ``manual`` finding names keeps its bytes.

    An edit of another rule around or inside of it is dropped, and with it all that is said of the same statement and
    all other edits that belong to it. One finding names the rule that keeps the statement.
    """
    kept = _contested(file, found)
    if not kept:
        return found
    left: Found = []
    for rule, diagnosis in found:
        places = (diagnosis.node, *(edit.node for edit in diagnosis.edits))
        statement = next((entry for entry in map(file.statement, places) if entry in kept), None)
        if statement is not None and (diagnosis.edits or diagnosis.level in (Level.SAFE, Level.REVIEW)):
            if diagnosis.level is not Level.MANUAL:
                message = f"{UNCHANGED}this statement has to be changed by hand ({kept[statement]})"
                diagnosis = Diagnosis(diagnosis.node, Level.INFO, message, "do that first, then run this tool again")
            diagnosis = replace(diagnosis, edits=(), consumes=())
        left.append((rule, diagnosis))
    return said_once(left, file)


def _contested(file: File, found: Found) -> dict[cst.CSTNode, str]:
    """The statements whose edits meet a ``manual`` finding, and the id of its rule."""
    manual = [(rule, entry.node) for rule, entry in found if entry.level is Level.MANUAL]
    named = {file.statement(node) for _, node in manual}
    edits = [(rule, edit) for rule, entry in found for edit in entry.edits if file.statement(edit.node) in named]
    return {
        file.statement(node): speaker.id
        for speaker, node in manual
        if any(_meets(edit, node, speaker is rule, file) for rule, edit in edits)
    }


def _meets(edit: Edit, node: cst.CSTNode, is_own: bool, file: File) -> bool:
    """Whether ``edit`` may change what a ``manual`` finding at ``node`` names."""
    around = edit.node is node or edit.node in file.ancestors(node)
    if isinstance(edit, ReplaceStatement) and isinstance(edit.node, cst.BaseSmallStatement):
        return file.statement(node) is edit.node
    # A rule that edits around its own finding keeps what it names.
    return not is_own and (
        (isinstance(edit, Replace) and around)
        or (isinstance(edit, Replace | ReplaceStatement | Rebuild) and node in file.ancestors(edit.node))
    )
