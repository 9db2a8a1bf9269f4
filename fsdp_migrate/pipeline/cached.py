"""A run that was made before, of the same files, with the same options, by the same release, is not made again.

What a rule says of a file can depend on every other file of the tree, so that one answer is kept for all of them.
"""

from __future__ import annotations

import base64
import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult
from fsdp_migrate.tree.cache import Cache
from fsdp_migrate.tree.files import Source, discover
from fsdp_migrate.tree.regular import read_regular
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed, Result, Skipped, Unchanged

if TYPE_CHECKING:
    from fsdp_migrate.pipeline.engine import Engine
    from fsdp_migrate.pipeline.request import Progress, Request

#: The packages whose code decides what a run says.
_PACKAGES = ("fsdp_migrate", "fsdp_rules", "libcst")


def rewrite(request: Request, engine: Engine, progress: Progress, kept: Cache | None) -> RunResult:
    """As :func:`fsdp_migrate.pipeline.run.rewrite` with ``diff``, from ``kept`` where that has the very same run.

    A text of standard input is always looked at, and so is a tree of which a traced run shows something.
    """
    if kept is None or request.stdin is not None or request.observe is not None:
        return _run(request, engine, progress)
    sources = discover(request.paths, request.selection)
    try:
        digests = _digests(sources)
        key = _key(request, engine, sources, digests)
    except (OSError, MemoryError):
        # The run says which file cannot be read.
        return _run(request, engine, progress)
    found = _decoded(kept.get(key), request, sources, digests)
    if found is not None:
        return found
    result = _run(request, engine, progress)
    # What went wrong may go well the next time; and a file that changed meanwhile was read before or after that.
    if not result.errors and _are_still(sources, digests):
        kept.put(key, [result.both, *map(_encoded, result.outcomes)])
    return result


def _run(request: Request, engine: Engine, progress: Progress) -> RunResult:
    from fsdp_migrate.pipeline import run

    return run.rewrite(request, engine, progress)


def _digests(sources: Sequence[Source]) -> dict[str, str]:
    """The digest of each file by the name that it is shown by. Raises :class:`OSError`."""
    return {source.shown: _digest(read_regular(source.path)) for source in sources}


def _are_still(sources: Sequence[Source], digests: Mapping[str, str]) -> bool:
    try:
        return _digests(sources) == digests
    except (OSError, MemoryError):
        return False


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _key(request: Request, engine: Engine, sources: Sequence[Source], digests: Mapping[str, str]) -> str:
    asked = (repr(replace(request, jobs=None)), repr(type(engine)), str(Path.cwd()), sys.version)
    files = [(source.shown, str(source.path), digests[source.shown]) for source in sources]
    return _digest(repr((asked, files, _code())).encode("utf-8", "surrogateescape"))


@cache
def _code() -> tuple[object, ...]:
    """Name, size and time of every file of the packages, which an edit of one or an update changes."""
    found = []
    for name in _PACKAGES:
        spec = find_spec(name)
        for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
            found += list(_stamps(folder))
    return tuple(sorted(found))


def _stamps(folder: str) -> list[tuple[str, int, int]]:
    found = []
    for entry in os.scandir(folder):
        if entry.is_dir():
            if entry.name != "__pycache__":
                found += _stamps(entry.path)
        else:
            there = entry.stat()
            found.append((entry.path, there.st_size, there.st_mtime_ns))
    return found


def _encoded(outcome: FileOutcome) -> list[object]:
    match outcome.result:
        case Changed():
            content: object = base64.b64encode(outcome.result.source).decode()
        case Skipped():
            content = outcome.result.reason
        case _:
            content = None
    return [outcome.path, type(outcome.result).__name__, content, [astuple(one) for one in outcome.findings]]


def _decoded(value: Any, request: Request, sources: Sequence[Source], digests: Mapping[str, str]) -> RunResult | None:
    """The run that ``value`` holds; None where it holds none of these files."""
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        return None
    both, *files = value
    by_name = {source.shown: source for source in sources}
    try:
        outcomes = tuple(
            FileOutcome(path, by_name[path].path, _read(by_name[path], digests), _result(kind, content, findings))
            for path, kind, content, findings in files
        )
    except (KeyError, TypeError, ValueError, OSError):
        return None
    return RunResult(request.paths, request.diff, len(sources), outcomes, (), request.torch, both=both)


def _read(source: Source, digests: Mapping[str, str]) -> bytes:
    data = read_regular(source.path)
    if _digest(data) != digests[source.shown]:
        raise ValueError(f"{source.shown} changed meanwhile")
    return data


def _finding(*fields: Any) -> Finding:
    found = Finding(*fields)
    return replace(found, level=Level(found.level))


def _result(kind: str, content: Any, findings: Sequence[Sequence[Any]]) -> Result:
    found = tuple(_finding(*one) for one in findings)
    match kind:
        case "Changed":
            return Changed(base64.b64decode(content, validate=True), found)
        case "Unchanged":
            return Unchanged(found)
        case "Skipped":
            return Skipped(content)
    raise ValueError(kind)
