"""The other form of each edit: by a helper of fsdp_compat, or, where its rule has none, FSDP1's code as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.diagnosis import Diagnosis, InsertAfter, InsertBefore, Rebuild
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: What is said of an edit that is not made, so that FSDP1's names are to be imported from fsdp_compat.
KEPT = "FSDP1's code is kept, on fsdp_compat"


@dataclass(frozen=True, eq=False)
class Visit:
    """What ``rule`` says of one ``node`` that it was shown: its edits belong together."""

    rule: Rule
    node: cst.CSTNode
    said: tuple[Diagnosis, ...]


Ask = Callable[[File], list[Visit]]


def in_chosen_forms(file: File, ask: Ask) -> list[Visit]:
    """What ``ask`` says of ``file``, each edit with its name, in the form that the settings choose."""
    if file.settings.other is None:
        return ask(file)
    helped = {(visit.rule.id, visit.node): visit for visit in _helped(file, ask)}
    visits = ask(file)
    edits = [visit for visit in visits if _edits(visit)]
    helpers = {visit: other for visit in edits if (other := helped.get((visit.rule.id, visit.node)))}
    helpers = {visit: other for visit, other in helpers.items() if _differs(visit, other, file)}
    names = _together([visit for visit in edits if visit not in helpers], file)
    names |= {visit: _name(visit, file) for visit in helpers}
    return [_chosen(visit, names[visit], helpers.get(visit), file) if visit in names else visit for visit in visits]


def _chosen(visit: Visit, name: str, helper: Visit | None, file: File) -> Visit:
    said = visit.said
    if name in (file.settings.other or ()):
        said = helper.said if helper is not None else tuple(map(_kept, said))
    return replace(visit, said=tuple(replace(entry, edit=name) for entry in said))


def _helped(file: File, ask: Ask) -> list[Visit]:
    """The same with helpers wherever there are any."""
    native: Settings = file.settings
    file.settings = replace(native, helpers="always")
    try:
        return ask(file)
    finally:
        file.settings = native
        file.answers.clear()


def _edits(visit: Visit) -> list[cst.CSTNode]:
    """The nodes that are edited."""
    return [edit.node for said in visit.said if said.level in (Level.SAFE, Level.REVIEW) for edit in said.edits]


def _differs(visit: Visit, helper: Visit, file: File) -> bool:
    """Whether the rule writes something else where it prefers helpers; a wrap has FSDP's class in place of one."""
    return not visit.rule.is_wrap and _written(visit, file) != _written(helper, file)


def _written(visit: Visit, file: File) -> list[tuple[cst.CSTNode, str]]:
    return [
        (edit.node, said.message if isinstance(edit, Rebuild) else edit.build(file.code))
        for said in visit.said
        for edit in said.edits
    ]


def _kept(said: Diagnosis) -> Diagnosis:
    """The verdict where nothing is edited."""
    if not said.edits:
        return said
    claims = (*said.claims, *(edit.node for edit in said.edits))
    return Diagnosis(said.node, Level.INFO, KEPT, claims=claims, rule=said.rule)


def _together(visits: Iterable[Visit], file: File) -> dict[Visit, str]:
    """The names of edits without a helper: those inside of what another one replaces belong to that."""
    names: dict[Visit, str] = {}
    owners: dict[cst.CSTNode, str] = {}
    for visit in sorted(visits, key=lambda visit: _place(visit, file)):
        around = (node for edited in _edits(visit) for node in (edited, *file.ancestors(edited)))
        name = names[visit] = next((owners[node] for node in around if node in owners), _name(visit, file))
        for node in _replaced(visit):
            owners[file.statement(node)] = name
    return names


def _replaced(visit: Visit) -> Iterator[cst.CSTNode]:
    for said in visit.said:
        yield from (edit.node for edit in said.edits if not isinstance(edit, InsertBefore | InsertAfter))


def _place(visit: Visit, file: File) -> tuple[int, int]:
    span = file.span(visit.node)
    return span.line, span.column


def _name(visit: Visit, file: File) -> str:
    line, column = _place(visit, file)
    return f"{file.path}:{line}:{column} {visit.rule.id}"
