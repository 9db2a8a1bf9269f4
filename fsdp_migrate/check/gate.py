"""A whole check: the pipeline of a rewrite with nothing written, and a look into every checkpoint."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fsdp_migrate.check import baseline as baselines
from fsdp_migrate.check import targets
from fsdp_migrate.check.checked import CheckResult, Told, at_least
from fsdp_migrate.check.comments import todos, unknown_names
from fsdp_migrate.check.fingerprints import fingerprints
from fsdp_migrate.checkpoints.entries import BadCheckpoint
from fsdp_migrate.checkpoints.read.find import Found
from fsdp_migrate.pipeline import cached
from fsdp_migrate.pipeline.engine import Engine
from fsdp_migrate.pipeline.hunks import Hunk, hunks
from fsdp_migrate.pipeline.lines import source_line
from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_migrate.pipeline.request import Observe, Progress, Request
from fsdp_migrate.pipeline.work import contained
from fsdp_migrate.tree.cache import Cache
from fsdp_migrate.tree.files import SUFFIXES, is_config
from fsdp_migrate.tree.selection import ALL_FILES, Selection
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed, Failed


@dataclass(frozen=True)
class CheckRequest:
    """What the user asked for. ``settings`` are those of a rewrite; ``baseline`` is a file of known findings.

    ``stdin`` is a text that is read in place of the one path, which names it; ``observe`` is that of a rewrite.
    ``cache`` has what earlier runs came to. ``edits`` are findings about edits, which nothing silences.
    """

    paths: tuple[str, ...]
    settings: Settings
    min_level: Level = Level.SAFE
    baseline: Path | None = None
    jobs: int | None = None
    selection: Selection = ALL_FILES
    stdin: bytes | None = None
    digests: bool = False
    observe: Observe | None = None
    cache: Cache | None = None
    edits: tuple[Finding, ...] = ()


def check(
    request: CheckRequest, engine: Engine, rule_names: Callable[[], Mapping[str, str]], progress: Progress
) -> CheckResult:
    """Look at everything that ``request`` names.

    ``rule_names`` gives the name of every rule by its id, and is asked only where a comment has an id. Raises
    :class:`fsdp_migrate.tree.files.NoSuchPath` and :class:`fsdp_migrate.check.baseline.BaselineError` before anything
    is read. Whatever goes wrong with one path is in the result.
    """
    known = baselines.read(request.baseline) if request.baseline else set()
    if request.stdin is None:
        sorted_paths = targets.sort(request.paths, request.selection)
    else:
        sorted_paths = targets.Targets(request.paths, (), (), ())
    rewritten = _sources(request, sorted_paths.sources, engine, progress)
    in_checkpoints, errors = _checkpoints(sorted_paths.checkpoints, request.digests, progress)
    in_comments, comment_errors = _comments(rewritten, rule_names)
    errors += [*sorted_paths.errors, *rewritten.errors, *comment_errors]

    wanted = [
        finding
        for finding in [*rewritten.findings, *in_comments, *in_checkpoints]
        if request.settings.enabled(finding.rule) and not request.selection.ignores(finding.rule, finding.path)
    ]
    wanted.sort(key=lambda finding: (finding.path, finding.line, finding.column, finding.rule, finding.message))
    sources = {file.path: file.before for file in rewritten.outcomes}
    changes = _changes(rewritten)
    told, below, counted = [], 0, 0
    for finding, fingerprint in zip(wanted, fingerprints(wanted, sources), strict=True):
        fails = at_least(finding.level, request.min_level)
        line = source_line(sources.get(finding.path, b""), finding.line)
        fix = _fix(finding, changes)
        shown = () if _is_partial(request) else fix
        one = Told(finding, fails, finding.path not in sources, fingerprint, line, shown, bool(fix))
        if request.baseline and baselines.entry_of(one, request.baseline) in known:
            counted += 1
        elif fails or finding.level is Level.INFO:
            told.append(one)
        else:
            below += 1
    told += [Told(one, True, False, _of_message(one)) for one in request.edits]
    told.sort(key=lambda one: (one.finding.path, one.finding.line, one.finding.column, one.finding.rule))
    return CheckResult(
        paths=sorted_paths.sources,
        min_level=request.min_level,
        sources=rewritten.scanned,
        checkpoints=len(sorted_paths.checkpoints),
        told=tuple(told),
        below=below,
        known=counted,
        errors=tuple(dict.fromkeys(errors)),
        skipped=(*rewritten.skipped, *sorted_paths.skipped),
        both=rewritten.both,
    )


def _of_message(finding: Finding) -> str:
    return fingerprints([finding], {})[0]


def _changes(result: RunResult) -> dict[str, list[Hunk]]:
    """What a rewrite of every rule would change, apart from comments about what it leaves."""
    return {
        file.path: [hunk for hunk in hunks(file.path, file.before, file.result.source) if not hunk.only_comments]
        for file in result.changed
        if isinstance(file.result, Changed)
    }


def _is_partial(request: CheckRequest) -> bool:
    """Whether rules are left out, so that a rewrite would change less."""
    return bool(request.settings.select or request.settings.ignore or request.selection.per_file_ignores)


def _fix(finding: Finding, changes: Mapping[str, list[Hunk]]) -> tuple[Hunk, ...]:
    if finding.level not in (Level.SAFE, Level.REVIEW):
        return ()
    return tuple(
        hunk for hunk in changes.get(finding.path, ()) if hunk.start < finding.end_line and finding.line <= hunk.end
    )


def _sources(request: CheckRequest, paths: tuple[str, ...], engine: Engine, progress: Progress) -> RunResult:
    if not paths:
        return RunResult((), True, 0, ())
    # Which rules are asked for is decided afterwards: what one rule says may depend on what another one did.
    settings = dataclasses.replace(request.settings, select=(), ignore=(), traps=True)
    asked = Request(
        paths,
        settings,
        diff=True,
        jobs=request.jobs,
        selection=request.selection.all_rules(),
        stdin=request.stdin,
        observe=request.observe,
    )
    return cached.rewrite(asked, engine, progress, request.cache)


def _checkpoints(
    found: tuple[Found, ...], digests: bool, progress: Progress
) -> tuple[list[Finding], list[tuple[str, str]]]:
    findings: list[Finding] = []
    errors: list[tuple[str, str]] = []
    progress.start("Reading checkpoints", len(found))
    for one in found:
        said = contained(partial(_judged, one, digests))
        if isinstance(said, Failed):
            errors.append((one.path.as_posix(), said.error))
        else:
            findings += said
        progress.step()
    return findings, errors


def _judged(found: Found, digests: bool) -> list[Finding] | Failed:
    from fsdp_migrate.checkpoints.judge.judge import judge
    from fsdp_migrate.checkpoints.read.checkpoint_parts import open_found
    from fsdp_migrate.checkpoints.read.digests import with_damage

    try:
        return judge(with_damage(open_found(found)) if digests else open_found(found))
    except (BadCheckpoint, OSError) as error:
        return Failed(str(error))


def _comments(
    result: RunResult, rule_names: Callable[[], Mapping[str, str]]
) -> tuple[list[Finding], list[tuple[str, str]]]:
    """What the comments of this command that stand in sources say, and those among them that name no rule."""
    commented = [
        file for file in result.outcomes if b"fsdp-migrate" in file.before and not isinstance(file.result, Failed)
    ]
    names = rule_names() if commented else {}
    findings: list[Finding] = []
    errors: list[tuple[str, str]] = []
    for file in commented:
        # A named file of another kind is read as Python, too.
        is_python = file.real.suffix != SUFFIXES[1] and not is_config(file.real)
        findings += todos(file, is_python, names)
        if file.real.suffix != SUFFIXES[1]:
            errors += [
                (file.path, f"line {line}: a comment ignores {name}, which is not a rule")
                for line, name in unknown_names(file.before, is_python, names)
            ]
    return findings, errors
