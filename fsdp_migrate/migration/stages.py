"""The stages of a migration, each from where the one before has left it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.migration.journal import Desk, Journal
from fsdp_migrate.pipeline import run
from fsdp_migrate.pipeline.engine import RulesEngine
from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_migrate.pipeline.request import Request
from fsdp_migrate.report.progress import NoProgress
from fsdp_migrate.trace.evidence import Evidence
from fsdp_migrate.trace.record import Trace, dumped, load
from fsdp_migrate.trace.recorded import traced
from fsdp_migrate.tree import git, writing
from fsdp_migrate.verify.bisect.bisecting import Bisection, bisect
from fsdp_migrate.verify.comparison import verify
from fsdp_migrate.verify.report import bisect_text
from fsdp_migrate.verify.runs import trees
from fsdp_migrate.verify.runs.launch import CannotRun
from fsdp_migrate.verify.runs.sides import Recorded, Wanted
from fsdp_rules.verdict.result import Changed, Unchanged

if TYPE_CHECKING:
    from fsdp_migrate.verify.report.runs_progress import Progress
    from fsdp_migrate.verify.verdict import Verdict
    from fsdp_rules.settings import Settings

#: The settings of a rewrite of the tree at a path.
SettingsOf = Callable[[Path], "Settings"]
#: Gets a line that is worth showing while work goes on.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Moved:
    """All that a migration came to: what the run showed, what was rewritten, and whether both runs are equal.

    ``bisection``: what makes the rewrite as it is differ, where that was looked for.
    """

    trace: Trace
    result: RunResult
    verdict: Verdict
    journal: Journal
    bisection: Bisection | None = None


def begin(desk: Desk, journal: Journal, allow_dirty: bool) -> Journal:
    """Check the tree, and name what is migrated. Raises :class:`CannotRun` and :class:`GitError`."""
    if not allow_dirty and trees.has_uncommitted(desk.root):
        raise CannotRun("the repository has uncommitted changes: commit them, or pass --allow-dirty")
    journal = replace(journal, before=git.snapshot(desk.root))
    desk.write(journal)
    return journal


def go_on(desk: Desk, journal: Journal, settings_of: SettingsOf, progress: Progress, say: Say) -> Moved:
    """Do what is left; ``say`` gets a line for each run of a search for what makes the two differ.

    Raises :class:`CannotRun` where a program fails; what is done by then is kept.
    """
    if journal.stage == "checked":
        journal = _timed(desk, journal, "traced", lambda: _trace(desk, journal, progress))
    trace = load(desk.trace)
    result = _rewritten(desk, journal, trace, settings_of)
    if journal.stage == "traced":
        journal = _write(desk, journal, result)
    began = time.monotonic()
    bisection = None
    if journal.options.to == "native" and _is_as_written(desk, result):
        request = partial(_request, settings_of=settings_of, trace=trace)
        bisection = bisect(_wanted(journal), request, bisect_text.watch(say), progress)
        if bisection.moves_on:
            say(f"writing the alternative form of {bisect_text.places(bisection.found.edits)}, to be verified again")
            journal = desk.put_form(journal, bisection.files)
    verdict = _verdict(desk, journal, bisection, progress)
    seconds = {**journal.seconds, "verified": time.monotonic() - began}
    journal = replace(journal, stage="verified", seconds=seconds)
    desk.write(journal)
    return Moved(trace, result, verdict, journal, bisection)


def _verdict(desk: Desk, journal: Journal, bisection: Bisection | None, progress: Progress) -> Verdict:
    """What the search has seen of the tree as it is now; where it has written another form, that is run."""
    if bisection is None or bisection.moves_on:
        return verify(replace(_wanted(journal), after_ref=git.snapshot(desk.root)), progress)
    native = bisection.found.native.verdict
    if native is None:
        raise CannotRun("\n".join(bisect_text.lines(bisection)))
    return replace(native, notes=(*native.notes, *bisection.notes))


def _timed(desk: Desk, journal: Journal, stage: str, work: Callable[[], None]) -> Journal:
    began = time.monotonic()
    work()
    journal = replace(journal, stage=stage, seconds={**journal.seconds, stage: time.monotonic() - began})
    desk.write(journal)
    return journal


def _trace(desk: Desk, journal: Journal, progress: Progress) -> None:
    options = journal.options
    with tempfile.TemporaryDirectory(prefix="fsdp-migrate-") as work:
        copy = Path(work).resolve() / "tree"
        trees.export(desk.root, journal.before, copy)
        trees.link(desk.root, copy, options.link)
        command = trees.command(options.command, desk.root / options.inside, copy / options.inside)
        found = traced(
            command,
            copy / options.inside,
            options.steps,
            options.timeout,
            progress,
            copy,
            (desk.root, copy),
            options.cpu,
        )
    if found.problem:
        raise CannotRun(found.problem)
    writing.replace(desk.trace, dumped(found.trace).encode())


def _rewritten(desk: Desk, journal: Journal, trace: Trace, settings_of: SettingsOf) -> RunResult:
    """What a rewrite makes of the tree that is migrated; nothing is written."""
    with tempfile.TemporaryDirectory(prefix="fsdp-migrate-") as work:
        copy = Path(work).resolve() / "tree"
        trees.export(desk.root, journal.before, copy)
        result = run.rewrite(_request(copy, settings_of, trace), RulesEngine(), NoProgress())
        return _from(copy, result)


def _request(tree: Path, settings_of: SettingsOf, trace: Trace) -> Request:
    return Request((str(tree),), settings_of(tree), diff=True, observe=Evidence(trace))


def _is_as_written(desk: Desk, result: RunResult) -> bool:
    """Whether the tree has the rewrite as it was made, so that other forms of its edits can be tried."""
    return all(
        (desk.root / one.path).is_file() and (desk.root / one.path).read_bytes() == one.result.source
        for one in result.changed
        if isinstance(one.result, Changed)
    )


def _from(copy: Path, result: RunResult) -> RunResult:
    """``result`` with paths from the root of the copy."""
    start = f"{copy.as_posix()}/"

    def named(path: str) -> str:
        return path.removeprefix(start)

    outcomes = []
    for one in result.outcomes:
        told = one.result
        if isinstance(told, Changed | Unchanged):
            here = (replace(f, path=named(f.path), wrapped=named(f.wrapped)) for f in told.findings)
            told = replace(told, findings=tuple(here))
        outcomes.append(replace(one, path=named(one.path), result=told))
    since = None if result.changed_since is None else tuple(map(named, result.changed_since))
    return replace(result, paths=(".",), outcomes=tuple(outcomes), changed_since=since)


def _write(desk: Desk, journal: Journal, result: RunResult) -> Journal:
    for path, reason in result.errors:
        raise CannotRun(f"{path} could not be rewritten: {reason}")
    changes = {one.path: (one.before, one.result.source) for one in result.changed if isinstance(one.result, Changed)}
    if not changes:
        raise CannotRun("nothing to rewrite here: no FSDP1 code was found")
    journal = replace(desk.put(journal, changes), stage="rewritten")
    desk.write(journal)
    return journal


def _wanted(journal: Journal) -> Wanted:
    options = journal.options
    return Wanted(
        options.command, options.command, Recorded(options.steps, 0, None, cpu=options.cpu), to=options.to,
        before_ref=journal.before, link=options.link, timeout=options.timeout,
    )  # fmt: skip
