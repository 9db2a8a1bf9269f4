"""Statements that two rules would edit, or that one would edit and the other leaves to a human: nothing changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
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
    all other edits that belong to it. One finding names the rule that keeps the statement. What two findings would
    put something else in place of is left to a human as well.
    """
    found, kept = _one_by_one(file, found)
    kept |= _contested(file, found)
    if not kept:
        return found
    left: Found = []
    for rule, diagnosis in found:
        places = (diagnosis.node, *(edit.node for edit in diagnosis.edits))
        statement = next((entry for place in places if (entry := _whole(place, file)) in kept), None)
        if statement is not None and (diagnosis.edits or diagnosis.level in (Level.SAFE, Level.REVIEW)):
            if diagnosis.level is not Level.MANUAL:
                message = f"{UNCHANGED}change this statement by hand ({kept[statement]})"
                diagnosis = Diagnosis(diagnosis.node, Level.INFO, message, "do that first, then run this tool again")
            diagnosis = replace(diagnosis, edits=(), consumes=())
        left.append((rule, diagnosis))
    return said_once(left, file)


def _one_by_one(file: File, found: Found) -> tuple[Found, dict[cst.CSTNode, str]]:
    """``found`` with one finding for each node that several would replace, and the statements of these nodes."""
    asked: dict[cst.CSTNode, list[tuple[Rule, Diagnosis]]] = defaultdict(list)
    for rule, diagnosis in found:
        for edit in diagnosis.edits:
            if isinstance(edit, Replace | ReplaceStatement | Rebuild):
                asked[edit.node].append((rule, diagnosis))
    shared = {node: pairs[0][1] for node, pairs in asked.items() if len(pairs) > 1 and _are_same(node, pairs, file)}
    several = {node: pairs for node, pairs in asked.items() if len(pairs) > 1 and node not in shared}
    rules = {id(pairs[0][1]): " and ".join(sorted({rule.id for rule, _ in pairs})) for pairs in several.values()}
    left = [
        (rule, _left(entry, rules[id(entry)]) if id(entry) in rules else _without(shared, entry))
        for rule, entry in found
    ]
    return left, {_whole(node, file): pairs[0][0].id for node, pairs in several.items()}


def _are_same(node: cst.CSTNode, pairs: Found, file: File) -> bool:
    """Whether all put the same text in place of ``node``, as wraps do that share a value."""
    edits = [edit for _, diagnosis in pairs for edit in diagnosis.edits if edit.node is node]
    return len({edit.build(file.code) if isinstance(edit, Replace) else edit for edit in edits}) == 1


def _without(shared: Mapping[cst.CSTNode, Diagnosis], diagnosis: Diagnosis) -> Diagnosis:
    """``diagnosis`` without edits that another makes as well."""
    edits = tuple(edit for edit in diagnosis.edits if shared.get(edit.node, diagnosis) is diagnosis)
    return diagnosis if len(edits) == len(diagnosis.edits) else replace(diagnosis, edits=edits)


def _left(diagnosis: Diagnosis, rules: str) -> Diagnosis:
    message = f"{rules} would rewrite this in different ways, so it is unchanged"
    return Diagnosis(diagnosis.node, Level.MANUAL, message, "write it as two statements, then run this tool again")


def _contested(file: File, found: Found) -> dict[cst.CSTNode, str]:
    """The statements whose edits meet a ``manual`` finding, and the id of its rule."""
    manual = [(rule, entry) for rule, entry in found if entry.level is Level.MANUAL]
    named = {_whole(entry.node, file) for _, entry in manual}
    edits = [(rule, entry, edit) for rule, entry in found for edit in entry.edits if _whole(edit.node, file) in named]
    return {
        _whole(left.node, file): speaker.id
        for speaker, left in manual
        if any(
            (entry is not left and _is_inside(edit, left.node, file)) or _meets(edit, left.node, speaker is rule, file)
            for rule, entry, edit in edits
        )
    }


def _whole(node: cst.CSTNode, file: File) -> cst.CSTNode:
    """The statement of ``node``; one on the line of the head that it is the body of (``while x: y``) is that one's."""
    statement = file.statement(node)
    suite = file.parent(statement)
    around = file.parent(suite) if isinstance(suite, cst.SimpleStatementSuite) else None
    return around if isinstance(around, cst.BaseCompoundStatement) else statement


def _is_inside(edit: Edit, node: cst.CSTNode, file: File) -> bool:
    """Whether ``edit`` changes a part of ``node``."""
    return isinstance(edit, Replace | ReplaceStatement | Rebuild) and node in file.ancestors(edit.node)


def _meets(edit: Edit, node: cst.CSTNode, is_own: bool, file: File) -> bool:
    """Whether ``edit`` of another place may change what a ``manual`` finding at ``node`` names, from around it."""
    around = edit.node is node or edit.node in file.ancestors(node)
    if isinstance(edit, ReplaceStatement) and isinstance(edit.node, cst.BaseSmallStatement):
        return file.statement(node) is edit.node
    if isinstance(edit, ReplaceStatement | Rebuild) and not is_own and isinstance(edit.node, cst.BaseCompoundStatement):
        # Its head: what is in its body has statements of its own.
        return file.statement(node) is edit.node
    # A rule that edits around its own finding keeps what it names.
    return not is_own and isinstance(edit, Replace) and around
