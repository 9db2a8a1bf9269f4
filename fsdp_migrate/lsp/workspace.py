"""What there is to say about the files that an editor has open, without its protocol."""

from __future__ import annotations

import dataclasses
import gc
import io
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.check.comments import todos
from fsdp_migrate.lsp.caching import CachingEngine
from fsdp_migrate.pipeline import run
from fsdp_migrate.pipeline.hunks import Hunk, hunks
from fsdp_migrate.pipeline.request import Request
from fsdp_migrate.report.progress import NoProgress
from fsdp_migrate.report.rulebook import check_names, pages
from fsdp_migrate.trace.evidence import Evidence
from fsdp_migrate.trace.record import load
from fsdp_migrate.tree import settings
from fsdp_migrate.tree.line_length import line_length
from fsdp_migrate.tree.settings import split_names
from fsdp_migrate.tree.torch_release import least_torch, newest_releases
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding
from fsdp_rules.verdict.result import Changed, Failed


@dataclass(frozen=True)
class Open:
    """One open file: its findings, and the hunks of its rewrite, whose lines are of ``encoding``; ``error`` or ""."""

    findings: tuple[Finding, ...] = ()
    hunks: tuple[Hunk, ...] = ()
    encoding: str = "utf-8"
    error: str = ""


def look(root: Path, texts: Mapping[Path, str], engine: CachingEngine, trace: str | None = None) -> dict[Path, Open]:
    """What there is to say about each of ``texts``, by its real path; the rest of the project ``root`` is on disk.

    ``engine`` keeps between calls what it has read of files that do not change. ``trace`` names the record of a run,
    from ``root``.

    Raises :class:`fsdp_migrate.trace.record.BadTrace`, :class:`fsdp_migrate.tree.settings.SettingsError`, and
    :class:`fsdp_migrate.report.rulebook.UnknownRule`.
    """
    defaults = settings.load(root)
    release = defaults.torch or least_torch(root)
    ignored = split_names(defaults.ignore or ())
    wanted = Settings(
        to=defaults.to or "native",
        helpers=defaults.helpers or "needed",
        select=split_names(defaults.select or ()),
        ignore=ignored,
        torch=release.release,
        line_length=line_length(root),
        traps=True,
        raises_torch=release.raises,
        **newest_releases(root),
    )
    known = pages()
    check_names((*wanted.select, *ignored), known)
    encodings = {path: _encoding(text) for path, text in texts.items()}
    overlay = {path: text.encode(encodings[path], errors="replace") for path, text in texts.items()}
    paths = (str(root), *(str(path) for path in texts if not path.is_relative_to(root)))
    request = Request(
        paths, wanted, diff=True, jobs=1, torch=release, selection=defaults.files, overlay=overlay,
        observe=None if trace is None else Evidence(load(root / trace)),
    )  # fmt: skip
    engine.look_at(texts)
    try:
        result = run.rewrite(request, engine, NoProgress())
    finally:
        # A run expects that the process ends with it.
        gc.unfreeze()
        gc.set_threshold(700, 10, 10)
    names = {page.id: page.name for page in known}
    found = dict.fromkeys(texts, Open())
    for file in result.outcomes:
        if file.real in texts:
            of_file = (*file.findings, *todos(file, True, names))
            kept = tuple(dataclasses.replace(one, path=str(file.real)) for one in of_file if wanted.enabled(one.rule))
            changed = hunks(file.path, file.before, file.result.source) if isinstance(file.result, Changed) else []
            error = file.result.error if isinstance(file.result, Failed) else ""
            found[file.real] = Open(kept, tuple(changed), encodings[file.real], error)
    return found


def _encoding(text: str) -> str:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(text.encode("utf-8", errors="replace")).readline)
    except SyntaxError:
        return "utf-8"
    return "utf-8" if encoding == "utf-8-sig" else encoding
