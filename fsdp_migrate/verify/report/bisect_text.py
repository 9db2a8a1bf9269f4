"""A search for the edits that make a rewrite differ, as lines of text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from fsdp_migrate.report.diff import unified
from fsdp_migrate.report.summary import count
from fsdp_migrate.verify.bisect.bisecting import Bisection
from fsdp_migrate.verify.bisect.culprits import Bisected, Trial, Watch
from fsdp_migrate.verify.bisect.forms import Edit
from fsdp_migrate.verify.report import verdict_text
from fsdp_migrate.verify.report.facts import headline, place
from fsdp_rules.verdict.finding import Finding

_MANY = 3


def watch(say: Callable[[str], None]) -> Watch:
    """Says a line for each run of a search."""
    return lambda run, most, edits, trial: say(run_line(run, most, edits, trial))


def run_line(run: int, most: int, edits: Sequence[Edit], trial: Trial) -> str:
    """One run of the search."""
    names = places(edits[:_MANY]) + (f" and {len(edits) - _MANY} more" if len(edits) > _MANY else "")
    return f"run {run} of at most {most}: {names} in the alternative form: {_came(trial)}"


def lines(bisection: Bisection) -> Iterator[str]:
    """The verdict on the rewrite as it is, what was found, and the form that makes the runs equal."""
    found, notes = bisection.found, bisection.notes
    if not bisection.repeats:
        notes = (*notes, 'two runs of the old code differ: "equal" means within that measured noise')
    if found.native.verdict is not None:
        verdict = found.native.verdict
        yield from verdict_text.lines(replace(verdict, notes=(*verdict.notes, *notes)))
    else:
        yield found.native.said
        yield from (f"note: {note}" for note in notes)
    yield from search_lines(bisection)


def search_lines(bisection: Bisection) -> Iterator[str]:
    """What was found, without the verdict on the rewrite as it is."""
    found = bisection.found
    if found.crash is not None:
        where, finding = found.crash
        yield f"the rewrite fails at {where} (line of the rewrite); nearest finding (line of the old code):"
        yield f"  {_said(finding)}"
    if found.search is None:
        return
    yield ""
    yield from _answer(bisection)
    for path, versions in bisection.files.items() if found.edits else ():
        for line in unified(path, versions.native, versions.other):
            yield "  " + line.decode("utf-8", errors="backslashreplace").rstrip("\r\n")


def _answer(bisection: Bisection) -> Iterator[str]:
    found = bisection.found
    search = found.search
    assert search is not None
    if not found.edits:
        seen = _came(found.native)
        if not search.is_smallest:
            yield f"no alternative form was found in {count(search.runs, 'run')}; {seen}"
            return
        yield f"no alternative form of any edit makes the runs equal ({count(search.runs, 'run')}); {seen}"
        yield "  Try fsdp-migrate verify --to shim, and read the review findings."
        return
    smallest = "" if search.is_smallest else ", maybe fewer (the limit of runs is reached)"
    runs = count(search.runs, "run")
    yield f"found in {runs}: the runs are equal with the alternative form of {_edits(found)}{smallest}"
    for edit in found.edits:
        yield f"  {_said(_spoken(edit, found.native))}"
    if not bisection.moves_on:
        yield "  that form is FSDP1's own configuration: it shows the cause, and is not written"
    verdict = found.native.verdict
    if verdict is not None and verdict.first is not None:
        yield f"  first difference: {place(verdict, verdict.first)}"
        yield f"    before: {verdict.first.before}"
        yield f"    after:  {verdict.first.after}"


def _edits(found: Bisected) -> str:
    return "this edit" if len(found.edits) == 1 else f"these {len(found.edits)} edits"


def _spoken(edit: Edit, native: Trial) -> Finding:
    """The finding of the rule that the cause names, else that of the edit itself."""
    cause = native.verdict.cause if native.verdict is not None else None
    named = [finding for finding in edit.findings if cause is not None and finding.rule == cause.rule]
    return named[0] if named else edit.finding


def _said(finding: Finding) -> str:
    return f"{finding.path}:{finding.line} {finding.rule} {finding.level.value}: {finding.text}"


def places(edits: Sequence[Edit]) -> str:
    """Where edits are, and by which rules."""
    return ", ".join(f"{edit.finding.path}:{edit.finding.line} {edit.finding.rule}" for edit in edits)


def _came(trial: Trial) -> str:
    if trial.is_equal:
        return "equal"
    if trial.verdict is None:
        return f"failed ({trial.last})"
    if trial.verdict.first is None:
        return headline(trial.verdict)
    return f"the difference first appears at {place(trial.verdict, trial.verdict.first)}"
