"""A file that has been read, with its result; code on ``fsdp_compat`` is read as the FSDP1 code it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fsdp_migrate.pipeline.engine import Engine
from fsdp_migrate.pipeline.moved_lines import follow
from fsdp_migrate.pipeline.request import ReadAs
from fsdp_migrate.pipeline.work import Candidate
from fsdp_migrate.tree.files import Source
from fsdp_rules.verdict.result import Changed, Result, Unchanged

PENDING: Result = Unchanged()


@dataclass
class ReadFile:
    """``candidate`` is what is indexed and rewritten, ``data`` what lies on the disk."""

    source: Source
    candidate: Candidate
    result: Result
    data: bytes


def as_fsdp1(files: Sequence[ReadFile], engine: Engine) -> None:
    """Let the sources among ``files`` be read as the FSDP1 code that they stand for."""
    for file in files:
        candidate = file.candidate
        if not file.source.is_config and not candidate.is_notebook:
            file.candidate = replace(candidate, data=engine.as_fsdp1(candidate.data))


def read_otherwise(files: Sequence[ReadFile], read_as: ReadAs) -> None:
    """Let the sources among ``files`` be read as what ``read_as`` gives; their lines are the same."""
    for file in files:
        candidate = file.candidate
        if not file.source.is_config and not candidate.is_notebook:
            file.candidate = replace(candidate, data=read_as(file.source.path, candidate.data))


def back_on_shim(files: Sequence[ReadFile], engine: Engine) -> None:
    """Give what was left of FSDP1 in results its shim again; lines are then those of the files as they are."""
    for file in files:
        read, result = file.candidate.data, file.result
        if file.data == read:
            continue
        if isinstance(result, Changed):
            after = engine.back_on_shim(result.source, file.candidate.path)
            findings = follow(result.findings, read, file.data)
            file.result = Changed(after, findings) if after != file.data else Unchanged(findings)
        elif isinstance(result, Unchanged):
            file.result = Unchanged(follow(result.findings, read, file.data))
