"""The facts of a tree of texts, as the command works them out, and a file of it as rules see it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from fsdp_migrate.pipeline.engine import RulesEngine
from fsdp_migrate.pipeline.indexing import Index
from fsdp_migrate.pipeline.work import Candidate, Indexer
from fsdp_rules.file.file import File
from fsdp_rules.project.project import Project
from fsdp_rules.settings import Settings


def project_of(files: Mapping[str, str]) -> Project:
    """The facts of a tree of ``files`` (path → text)."""
    indexer = Indexer(RulesEngine())
    index = Index(RulesEngine(), lambda several: [indexer(one) for one in several])
    project = index.build([Candidate(path, text.encode(), False) for path, text in files.items()], ())
    return project or Project.build([])


def file_of(source: str, files: Mapping[str, str] | None = None, path: str = "example.py") -> File:
    """The file at ``path`` with the text ``source``, in a tree that has ``files`` (path → text) beside it."""
    project = project_of({**(files or {}), path: source})
    return File(source, ast.parse(source), path, project, Settings())
