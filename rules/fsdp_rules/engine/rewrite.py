"""From the bytes of one file to its result: parse, ask every rule, edit once, tidy the imports, check the output."""

from __future__ import annotations

import ast
import unicodedata
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.engine.apply import apply_edits
from fsdp_rules.engine.by_run import contradicted, settled
from fsdp_rules.engine.contested import uncontested
from fsdp_rules.engine.fitting import LONGEST, fitted
from fsdp_rules.engine.imports import tidy_imports
from fsdp_rules.engine.kept_code import UNCHANGED, left_alone, said_once, vendored
from fsdp_rules.engine.late_imports import in_time
from fsdp_rules.engine.leftovers import staying, unclaimed
from fsdp_rules.engine.odd_names import odd_name
from fsdp_rules.engine.other_forms import Visit, in_chosen_forms
from fsdp_rules.engine.registry import all_rules, in_charge, speaker
from fsdp_rules.engine.released import released_by
from fsdp_rules.engine.relevance import is_relevant
from fsdp_rules.engine.source_text import decode, odd_break
from fsdp_rules.engine.todos import new_todos, with_standing_todos
from fsdp_rules.engine.unread_names import Reads, unread
from fsdp_rules.engine.used_names import misunderstood
from fsdp_rules.file.file import File, dotted
from fsdp_rules.fsdp1.names import FSDP_PACKAGE, PUBLIC_MODULES
from fsdp_rules.model.origin import wrapped_in
from fsdp_rules.project.project import Project
from fsdp_rules.project.seen import seen_from
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.diagnosis import Diagnosis, Edit, InsertAfter, InsertBefore, Replace, remove
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed, Failed, Result, Unchanged
from fsdp_rules.verdict.rule import Role, Rule

#: What rules say of a file, each with the rule that says it.
Said = list[tuple[Rule, Diagnosis]]


@dataclass(frozen=True)
class Prepared:
    """A file that was parsed to decide about definitions.

    ``said`` is what the rules say of it, None where the decision is not what they were told when they were asked.
    """

    file: File
    said: Said | None = None


def rewrite_source(
    data: bytes, path: str, project: Project, settings: Settings, prepared: Prepared | None = None
) -> Result:
    """The result of rewriting one file.

    ``data`` is the whole file; encoding cookie, BOM and newlines are kept in the result. ``path`` must be the one
    under which the file was indexed. ``prepared`` is what these very bytes were parsed to under the same settings; it
    is used up. Never raises for bad input: a file that does not parse is ``Failed``.
    """
    project = seen_from(project, path)
    try:
        source = decode(data)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return Failed(f"cannot be decoded: {error}")
    try:
        text = source.text
        tree = prepared.file.tree if prepared is not None else ast.parse(text)
        odd = odd_name(text)
        read = text if odd is None else unicodedata.normalize("NFKC", text)
        if not released_by(path, project) and not is_relevant(read, path, project, settings.traps):
            return Unchanged()
        if odd is not None:
            return Failed("line {}: {} means {} to Python: write that and run again".format(*odd))
        file = prepared.file if prepared is not None else File(text, tree, path, project, settings)
    except SyntaxError as error:
        return Failed(f"line {error.lineno}: {error.msg}")
    except cst.ParserSyntaxError as error:
        return Failed(odd_break(text) or f"line {error.raw_line}: {error.message}")
    except ValueError as error:
        return Failed(str(error))
    except RecursionError:
        return Failed("is nested too deeply to be parsed")
    if file.layout.code != text:
        return Failed(odd_break(text) or "cannot be reproduced exactly after parsing, so it is unchanged")

    if (copied := vendored(file)) is not None:
        return Unchanged((_finding(file, *copied),) if file.settings.enabled(copied[0].id) else ())
    diagnoses = prepared.said if prepared is not None and prepared.said is not None else diagnosed(file)
    left = {file.statement(diagnosis.node) for _, diagnosis in diagnoses if _is_left(diagnosis)}
    edits = [edit for _, diagnosis in diagnoses for edit in diagnosis.edits if not is_made(edit, file)]
    todos = new_todos(file, diagnoses)
    module = apply_edits(file.layout, edits, todos) if edits or todos else file.module
    consumed = [entry for _, diagnosis in diagnoses for entry in diagnosis.consumes if entry[0] not in left]
    dead: list[cst.CSTNode] = []
    reads: dict[str, Reads] = {}
    while more := unread(file, module, [entry for entry in consumed if entry[0] not in dead], reads):
        dead += more
        module = apply_edits(file.layout, [*_outside(file, edits, dead), *map(remove, dead)], todos)
    wanted = [entry for entry in file.references.wanted_imports.values() if entry]
    # Where nothing else has changed, only FSDP1's own imports can be ones that go.
    if not (file.project.is_left_alone or file.project.kept.left_by(file.path)) and (
        module is not file.module or wanted or FSDP_PACKAGE in text or released_by(path, project)
    ):
        module, said = tidy_imports(file, module, wanted)
        module = in_time(file, module)
        diagnoses += _imports(file, said)
    output = file.printer.code(module)
    if output != text:
        untouched = {file.code(diagnosis.node) for _, diagnosis in diagnoses if _is_left(diagnosis)}
        output = fitted(output, text, settings.line_length or LONGEST, untouched)
    if settings.to != "shim":
        diagnoses += staying(file, [diagnosis for _, diagnosis in diagnoses], output)
    findings = tuple(
        sorted(
            (_finding(file, rule, diagnosis) for rule, diagnosis in diagnoses),
            key=lambda found: (found.line, found.column, found.rule),
        )
    )
    if output == text:
        return Unchanged(findings)
    problem = why_not_compiled(output, path)
    if problem is not None:
        before = why_not_compiled(text, path)
        if before is not None:
            return Failed(f"does not compile: {before}")
        return Failed(f"internal error: the rewritten file does not compile ({problem})")
    if own := misunderstood(tree, output, file.references.starred):
        return Failed(
            f"is unchanged: it defines its own {own[0]}, and the output needs Python's built-in; rename it and run "
            f"again"
        )
    return Changed(source.encode(output), findings)


def diagnosed(file: File) -> Said:
    """What the rules say about ``file``, asked again: what an earlier answer wanted to import is forgotten."""
    shown = file.observed
    if shown is None:
        return _asked(file)
    file.observed = shown.affirming
    without = _asked(file)
    file.observed = shown
    return settled(_asked(file) + contradicted(file), without, file)


def _asked(file: File) -> Said:
    file.answers.clear()
    file.references.want_nothing()
    return uncontested(file, with_standing_todos(file, _diagnose(file)))


def why_not_compiled(source: str, path: str) -> str | None:
    # IPython runs a cell's await outside of functions.
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if path.endswith(".ipynb") else 0
    try:
        compile(source, path, "exec", flags, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
    return None


def _imports(file: File, said: str) -> Said:
    """The finding about the file's FSDP1 imports, at the first of them."""
    rule = in_charge(Role.IMPORTS)
    if not said or not file.settings.enabled(rule.id):
        return []
    for node in file.nodes(cst.ImportFrom):
        if node.module is not None and not node.relative and dotted(node.module) in PUBLIC_MODULES:
            return [(rule, Diagnosis(node, Level.SAFE, said))]
    return []


def _outside(file: File, edits: list[Edit], dead: list[cst.CSTNode]) -> list[Edit]:
    """The edits that are left where ``dead`` goes, with those of expressions in it, which are written elsewhere."""
    gone = set(dead)
    return [
        edit
        for edit in edits
        if edit.node not in gone and (isinstance(edit, Replace) or gone.isdisjoint(file.ancestors(edit.node)))
    ]


def _diagnose(file: File) -> Said:
    shim = file.settings.to == "shim"
    found: Said = []
    # What a rule says in the name of others is about its own edit: silenced there, it has nothing to say for them.
    unheard: set[int] = set()
    for visit in in_chosen_forms(file, _visits):
        for said in visit.said:
            found.append((speaker(said.rule) if said.rule else visit.rule, said))
            if said.rule and _is_silenced(visit.rule, visit.node, file):
                unheard.add(id(said))
    if not shim:
        found += unclaimed(file, [diagnosis for _, diagnosis in found])
    heard = [
        (rule, diagnosis if shim else left_alone(diagnosis, file))
        for rule, diagnosis in found
        if not _is_silenced(rule, diagnosis.node, file) and id(diagnosis) not in unheard
    ]
    return heard if shim else said_once(heard, file)


def _visits(file: File) -> list[Visit]:
    shim = file.settings.to == "shim"
    return [
        Visit(rule, node, said)
        for rule in all_rules()
        if rule.shim or not shim
        for kind in rule.visits
        for node in file.nodes(kind)
        if (said := tuple(rule.visit(node, file)))
    ]


def _is_left(diagnosis: Diagnosis) -> bool:
    """Whether the statement that ``diagnosis`` is about keeps every byte."""
    return diagnosis.level is Level.MANUAL or diagnosis.message.startswith(UNCHANGED)


def _is_silenced(rule: Rule, node: cst.CSTNode, file: File) -> bool:
    return not file.settings.enabled(rule.id) or file.suppressions.ignored(rule.id, node)


def _finding(file: File, rule: Rule, diagnosis: Diagnosis) -> Finding:
    span, start = file.span(diagnosis.node), file.span(file.statement(diagnosis.node)).line
    return Finding(
        rule=rule.id,
        name=rule.name,
        path=file.path,
        line=span.line,
        column=span.column,
        end_line=span.end_line,
        end_column=span.end_column,
        level=diagnosis.level,
        message=diagnosis.message,
        advice=diagnosis.advice,
        statement=start,
        wrapped=wrapped_in(diagnosis.node, file) if rule.names_the_wrap else "",
        edit=diagnosis.edit if diagnosis.level in (Level.SAFE, Level.REVIEW) else "",
        ran=None if file.observed is None else not file.observed.lines.keys().isdisjoint((span.line, start)),
    )


def is_made(edit: Edit, file: File) -> bool:
    """Whether what ``edit`` inserts stands in its place, so that a second run has nothing to add."""
    if not isinstance(edit, InsertAfter | InsertBefore):
        return False
    block, place = file.layout.block(edit.node), file.layout.number(edit.node)
    if place is None:
        return False
    beside = place + (1 if isinstance(edit, InsertAfter) else -1)
    if not 0 <= beside < len(block):
        return False
    return _words(edit.build(file.code)) == _words(file.code(block[beside]))


def _words(text: str) -> str:
    return " ".join(text.split())
