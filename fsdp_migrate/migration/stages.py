"""The stages of a migration, each from where the one before has left it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from fsdp_migrate.verify.comparison import verify
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


@dataclass(frozen=True)
class Moved:
    """All that a migration came to: what the run showed, what was rewritten, and whether both runs are equal."""

    trace: Trace
    result: RunResult
    verdict: Verdict
    journal: Journal


def begin(desk: Desk, journal: Journal, allow_dirty: bool) -> Journal:
    """Check the tree, and name what is migrated. Raises :class:`CannotRun` and :class:`GitError`."""
    if not allow_dirty and trees.has_uncommitted(desk.root):
        raise CannotRun("the repository has uncommitted changes: commit them, or pass --allow-dirty")
    journal = replace(journal, before=git.snapshot(desk.root))
    desk.write(journal)
    return journal


def go_on(desk: Desk, journal: Journal, settings_of: SettingsOf, progress: Progress) -> Moved:
    """Do what is left. Raises :class:`CannotRun` where a program fails; what is done by then is kept."""
    if journal.stage == "checked":
        journal = _timed(desk, journal, "traced", lambda: _trace(desk, journal, progress))
    trace = load(desk.trace)
    result = _rewritten(desk, journal, trace, settings_of)
    if journal.stage == "traced":
        journal = _write(desk, journal, result)
    began = time.monotonic()
    verdict = _verify(desk, journal, progress)
    seconds = {**journal.seconds, "verified": time.monotonic() - began}
    journal = replace(journal, stage="verified", seconds=seconds)
    desk.write(journal)
    return Moved(trace, result, verdict, journal)


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
            command, copy / options.inside, options.steps, options.timeout, progress, copy, (desk.root, copy)
        )
    if found.problem:
        raise CannotRun(found.problem)
    writing.replace(desk.trace, dumped(found.trace).encode())


def _rewritten(desk: Desk, journal: Journal, trace: Trace, settings_of: SettingsOf) -> RunResult:
    """What a rewrite makes of the tree that is migrated; nothing is written."""
    with tempfile.TemporaryDirectory(prefix="fsdp-migrate-") as work:
        copy = Path(work).resolve() / "tree"
        trees.export(desk.root, journal.before, copy)
        asked = Request((str(copy),), settings_of(copy), diff=True, observe=Evidence(trace))
        result = run.rewrite(asked, RulesEngine(), NoProgress())
        return _from(copy, result)


def _from(copy: Path, result: RunResult) -> RunResult:
    """``result`` with paths from the root of the copy."""
    start = f"{copy.as_posix()}/"

    def named(path: str) -> str:
        return path.removeprefix(start)

    outcomes = []
    for one in result.outcomes:
        told = one.result
        if isinstance(told, Changed | Unchanged):
            told = replace(told, findings=tuple(replace(f, path=named(f.path)) for f in told.findings))
        outcomes.append(replace(one, path=named(one.path), result=told))
    since = None if result.changed_since is None else tuple(map(named, result.changed_since))
    return replace(result, paths=(".",), outcomes=tuple(outcomes), changed_since=since)


def _write(desk: Desk, journal: Journal, result: RunResult) -> Journal:
    for path, reason in result.errors:
        raise CannotRun(f"{path} could not be rewritten: {reason}")
    changes = {one.path: (one.before, one.result.source) for one in result.changed if isinstance(one.result, Changed)}
    if not changes:
        raise CannotRun("nothing is to be rewritten here: no FSDP1 code was found")
    journal = replace(desk.put(journal, changes), stage="rewritten")
    desk.write(journal)
    return journal


def _verify(desk: Desk, journal: Journal, progress: Progress) -> Verdict:
    options = journal.options
    after = git.snapshot(desk.root)
    wanted = Wanted(
        options.command, options.command, Recorded(options.steps, 0, None), to=options.to,
        before_ref=journal.before, after_ref=after, link=options.link, timeout=options.timeout,
    )  # fmt: skip
    return verify(wanted, progress)
