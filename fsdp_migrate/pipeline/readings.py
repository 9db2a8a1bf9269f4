"""Files that the rules read as another text than they have: code on the shim, and calls on FSDP1's class."""

from __future__ import annotations

from dataclasses import replace

from fsdp_migrate.pipeline.engine import Engine
from fsdp_migrate.pipeline.moved_lines import follow
from fsdp_migrate.pipeline.work import Candidate
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding
from fsdp_rules.verdict.result import Changed, Result, Unchanged


def reading(
    candidate: Candidate, on_shim: bool, settings: Settings, engine: Engine
) -> tuple[Candidate, tuple[Finding, ...]]:
    """The file as the rules read it, and what is said of its other text, on the lines of the file as it is."""
    if candidate.is_notebook:
        return candidate, ()
    data = engine.as_fsdp1(candidate.data) if on_shim else candidate.data
    read, found = engine.on_models(data, candidate.path, settings)
    if on_shim:
        found = follow(found, data, candidate.data)
    return replace(candidate, data=read), found


def as_it_was(
    data: bytes, candidate: Candidate, result: Result, found: tuple[Finding, ...], on_shim: bool, engine: Engine
) -> Result:
    """The ``result`` of a file with the text ``data`` that was read as ``candidate``, on the lines that it has.

    What a rewrite has left of FSDP1 gets its shim again. A file in which nothing else changes keeps its text.
    """
    read = candidate.data
    if data == read or not isinstance(result, Changed | Unchanged):
        return result
    findings = follow(result.findings, read, data)
    if isinstance(result, Unchanged):
        return Unchanged(findings)
    after = engine.back_on_shim(result.source, candidate.path) if on_shim else result.source
    order = sorted((*findings, *found), key=lambda entry: (entry.line, entry.column, entry.rule))
    return Changed(after, tuple(order)) if after != data else Unchanged(findings)
