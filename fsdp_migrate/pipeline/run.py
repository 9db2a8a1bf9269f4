"""A whole rewrite: find, read, index, rewrite, check that nothing can be lost, write."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fsdp_migrate.configs import configuration as configs
from fsdp_migrate.pipeline.agreement import Agreement
from fsdp_migrate.pipeline.configuring import configured, has_older_verl, naming, strategy_names
from fsdp_migrate.pipeline.engine import Engine
from fsdp_migrate.pipeline.indexing import Index
from fsdp_migrate.pipeline.moved_lines import follow, follow_wraps
from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult
from fsdp_migrate.pipeline.pool import Pool, worker_count
from fsdp_migrate.pipeline.read_file import PENDING, ReadFile, as_fsdp1, back_on_shim, read_otherwise
from fsdp_migrate.pipeline.releases import Done
from fsdp_migrate.pipeline.request import Progress, Request
from fsdp_migrate.pipeline.rewriting import rewritten
from fsdp_migrate.pipeline.work import Candidate, Indexer, Rewriter
from fsdp_migrate.tree import git as gitstate
from fsdp_migrate.tree import writing
from fsdp_migrate.tree.files import Source, discover, real
from fsdp_migrate.tree.regular import read_regular
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed, Failed, Skipped, Unchanged

if TYPE_CHECKING:
    from fsdp_rules.project.project import Project

Value = TypeVar("Value")
OBJECTS_OF_A_FILE = 100_000


#: Is given the files that would change, and returns what each comes to, by its path.
Choose = Callable[[Sequence[FileOutcome]], Mapping[str, Changed | Unchanged]]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while files were being written; each file is whole, either old or new."""

    def __init__(self, written: int, total: int) -> None:
        super().__init__()
        self.written = written
        self.total = total


def rewrite(request: Request, engine: Engine, progress: Progress, choose: Choose | None = None) -> RunResult:
    """Rewrite what ``request`` names. Nothing is written before every result is known, and ``choose`` has answered.

    Raises :class:`fsdp_migrate.tree.files.NoSuchPath` and :class:`fsdp_migrate.tree.git.GitError` before anything is
    written, also what ``request.keep`` raises, and :class:`Interrupted` between two files. Whatever goes wrong with one
    file is in its outcome.
    """
    # A parsed file is some 100,000 objects that live as long as it is worked on, and so do the rules.
    gc.set_threshold(OBJECTS_OF_A_FILE)
    text = request.stdin
    if text is None:
        sources, read = discover(request.paths, request.selection), partial(_overlaid, request.overlay)
    else:
        sources = [Source(Path(name).as_posix(), real(Path(name))) for name in request.paths]
        read = partial(_overlaid, {source.path: text for source in sources})
    files, rest = _read(sources, read, engine, progress)
    if request.of == "shim":
        as_fsdp1(files, engine)
    if request.read_as is not None:
        read_otherwise(files, request.read_as)
    python = [file for file in files if not file.source.is_config]
    written = [file for file in files if file.source.is_config]
    others = [one for one in rest if not one.is_config]
    reached, project = _analyse(python, written, others, request, engine, progress, read)
    files += reached
    texts = [(file.source.shown, file.candidate.data) for file in python if not file.candidate.is_notebook]
    keys = project.own if project is not None and engine.is_migrating(project) else {}
    for source, data in naming([one for one in rest if one.is_config], keys, read):
        files.append(ReadFile(source, Candidate(source.shown, data, False), PENDING, data))
    if request.of == "shim":
        back_on_shim(files, engine)
    files.sort(key=lambda file: file.source)
    said = Settings(
        shards_natively=project is not None and engine.shards_natively(project),
        older_verl=has_older_verl(texts),
        strategy_names=strategy_names(texts),
    )
    progress.start("Configuration", sum(file.source.is_config for file in files))
    done = [Done(file.candidate.path, file.candidate.data, file.result, file.source.is_config) for file in files]
    results = configured(done, keys, partial(_settings_of, request, said), progress.step)
    for file, result in zip(files, results, strict=True):
        noted = file.result.findings if file.source.is_config and isinstance(file.result, Unchanged) else ()
        if noted and isinstance(result, Changed | Unchanged):
            result = replace(result, findings=(*result.findings, *noted))
        file.result = result
    _leave_what_is_outside(files, request.paths)
    changed = [file for file in files if isinstance(file.result, Changed)]
    refused: list[str] = []
    if text is not None and not request.diff:
        _follow(changed)
    elif changed and not request.diff:
        if not request.allow_dirty:
            dirty = gitstate.uncommitted(file.source.path for file in changed)
            refused = [file.source.shown for file in changed if file.source.path in dirty]
        if not refused:
            if choose is not None:
                changed = _choose(changed, choose)
            if request.keep is not None and changed:
                request.keep(_replaced(changed))
            _write(changed, progress)
    outcomes = tuple(map(_outcome, files)) if request.diff or refused else follow_wraps([*map(_outcome, files)])
    since = None if request.observe is None else project.observed.changed if project is not None else ()
    both = (request.settings.both or "keep") if project is not None and engine.has_both(project) else ""
    return RunResult(request.paths, request.diff, len(sources), outcomes, tuple(refused), request.torch, since, both)


def _outcome(file: ReadFile) -> FileOutcome:
    return FileOutcome(file.source.shown, file.source.path, file.data, file.result)


def _choose(changed: Sequence[ReadFile], choose: Choose) -> list[ReadFile]:
    """The files that still change."""
    wanted = choose([*map(_outcome, changed)])
    for file in changed:
        file.result = wanted[file.source.shown]
    return [file for file in changed if isinstance(file.result, Changed)]


def _read(
    sources: Sequence[Source], read: Callable[[Path], bytes], engine: Engine, progress: Progress
) -> tuple[list[ReadFile], list[Source]]:
    """The files with a marker and those that could not be read, and all others."""
    progress.start("Reading", len(sources))
    files: list[ReadFile] = []
    rest: list[Source] = []
    for source in sources:
        has_marker = partial(configs.has_marker, name=source.path.as_posix()) if source.is_config else engine.has_marker
        try:
            data, result = read(source.path), PENDING
        except OSError as error:
            data, result = b"", Failed(f"could not read: {error.strerror or error}")
        except MemoryError:
            data, result = b"", Failed("could not read: too large for the memory of this machine")
        if result is not PENDING or has_marker(data):
            files.append(ReadFile(source, Candidate(source.shown, data, source.is_notebook), result, data))
        else:
            rest.append(source)
        progress.step()
    return files, rest


def _leave_what_is_outside(files: Sequence[ReadFile], paths: Sequence[str]) -> None:
    """Skip what would be rewritten through a link that leads out of ``paths``; a path that is named is asked for."""
    roots = [real(Path(path)) for path in paths]
    for file in files:
        if isinstance(file.result, Changed) and not any(file.source.path.is_relative_to(root) for root in roots):
            file.result = Skipped(
                f"this is a link to a file outside the given paths: pass {file.source.path} to rewrite that file"
            )


def _settings_of(request: Request, said: Settings, path: str) -> Settings:
    """The settings of one file; ``said`` has what the tree says of all of them."""
    return replace(
        request.selection.applied(request.settings, path),
        shards_natively=said.shards_natively,
        older_verl=said.older_verl,
        strategy_names=said.strategy_names,
    )


def _analyse(
    files: Sequence[ReadFile],
    written: Sequence[ReadFile],
    rest: Sequence[Source],
    request: Request,
    engine: Engine,
    progress: Progress,
    read: Callable[[Path], bytes],
) -> tuple[list[ReadFile], Project | None]:
    """Give every readable file its result; also the files among ``rest`` that a model reaches, and the project.

    ``written`` are files of configuration, which may name what is removed.
    """
    readable = {file.source.shown: file for file in files if not isinstance(file.result, Failed)}
    retires = request.settings.both == "retire"
    indexing = partial(_map, Indexer(engine), request=request, progress=progress, phase="Indexing")
    index = Index(engine, indexing, read, retires)
    project = index.build([file.candidate for file in readable.values()], rest)
    found = ((source, index.candidates[source.shown]) for source in index.found)
    reached = [ReadFile(source, candidate, PENDING, candidate.data) for source, candidate in found]
    indexed = {**readable, **{file.source.shown: file for file in reached}}
    for path, why in index.results.items():
        if why is not None:
            indexed[path].result = why
    for file in reached:
        if isinstance(file.result, Failed):
            # Only a guess led to it, so that it does not fail a run that it may have nothing to do with.
            file.result = Skipped(f"a wrapped model may be passed to it, but it {file.result.error}")
    if project is not None:
        if request.observe is not None:
            texts = {path: (file.source.path, file.data) for path, file in indexed.items()}
            project = replace(project, observed=request.observe(texts))
        parsed = [indexed[path] for path, why in index.results.items() if why is None]
        if retires and engine.has_both(project):
            _retire(parsed, written, rest, engine, read)
            parsed = [file for file in parsed if file.source.is_notebook]
        agreement = Agreement(engine, request.settings, request.selection, read)
        others = [file.candidate for path, file in indexed.items() if index.results.get(path, PENDING) is not None]
        project, prepared = agreement.reached(project, [file.candidate for file in parsed], others, rest)
        rewriter = Rewriter(engine, project, request.settings, request.selection, prepared)
        candidates = [file.candidate for file in parsed]
        run = partial(_map, request=request, progress=progress, phase="Rewriting")
        for file, result in zip(parsed, rewritten(engine, rewriter, candidates, run), strict=True):
            file.result = result
    return reached, project


def _retire(
    files: Sequence[ReadFile],
    written: Sequence[ReadFile],
    rest: Sequence[Source],
    engine: Engine,
    read: Callable[[Path], bytes],
) -> None:
    """Give every Python file among ``files`` its result without FSDP1's branches, and ``written`` what names them.

    ``rest`` may use what the files define.
    """
    sources = {file.source.shown: file.data for file in files if not file.source.is_notebook}

    def others() -> Iterator[tuple[str, bytes]]:
        yield from ((file.source.shown, file.data) for file in written)
        for source in rest:
            try:
                yield source.shown, read(source.path)
            except (OSError, MemoryError):
                continue

    results = engine.without_fsdp1(sources, others)
    for file in (*files, *written):
        file.result = results.get(file.source.shown, file.result)


def _map(
    task: Callable[[Candidate], Value],
    candidates: Sequence[Candidate],
    request: Request,
    progress: Progress,
    phase: str,
) -> list[Value | Failed]:
    if not candidates:
        return []
    sizes = [len(candidate.data) for candidate in candidates]
    progress.start(phase, len(candidates))
    pool: Pool[Candidate, Value | Failed] = Pool(task, _died, worker_count(request.jobs, sizes))
    # What is in memory now stays; workers need not look at it again, which would also copy its pages.
    gc.freeze()
    # The largest first, so that no process is left with one at the end.
    order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    return pool.run(candidates, order, progress.step)


def _died(candidate: Candidate) -> Failed:
    return Failed("the process for this file ended without a result (out of memory, or a crash)")


def _overlaid(overlay: Mapping[Path, bytes], path: Path) -> bytes:
    return overlay[path] if path in overlay else read_regular(path)


def _follow(changed: Sequence[ReadFile]) -> None:
    """Give findings the lines of the results, as if those were written."""
    for file in changed:
        if isinstance(file.result, Changed):
            after = file.result.source
            file.result = Changed(after, follow(file.result.findings, file.data, after))


def _replaced(changed: Sequence[ReadFile]) -> dict[Path, tuple[bytes, bytes]]:
    return {file.source.path: (file.data, file.result.source) for file in changed if isinstance(file.result, Changed)}


def _write(changed: Sequence[ReadFile], progress: Progress) -> None:
    progress.start("Writing", len(changed))
    for index, file in enumerate(changed):
        try:
            if isinstance(file.result, Changed):
                before, after = file.data, file.result.source
                writing.replace(file.source.path, after, expected=before)
                file.result = Changed(after, follow(file.result.findings, before, after))
        except OSError as error:
            file.result = Failed(f"could not write: {error.strerror or error}")
        except KeyboardInterrupt as interrupt:
            raise Interrupted(index, len(changed)) from interrupt
        progress.step()
