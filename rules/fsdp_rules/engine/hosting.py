"""What files tell each other before any edit: strategies of frameworks what they shard, loops what wraps carry."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache

import libcst as cst

from fsdp_rules.engine.kept_code import vendored
from fsdp_rules.engine.source_text import decode
from fsdp_rules.file.file import File
from fsdp_rules.hosts._lightning_files import agreeing, hosted_in
from fsdp_rules.model.kept_clearing import is_to_carry, kept_clearings
from fsdp_rules.project.project import Project
from fsdp_rules.settings import Settings


def hosting(project: Project, files: Mapping[str, bytes], settings_of: Callable[[str], Settings]) -> Project:
    """``project`` with what its strategies shard in other files; ``files`` are its Python files that have facts."""
    opened = _opening(project, files, settings_of)
    asking = [path for path, data in files.items() if b"FSDPStrategy" in data and b"Trainer" in data]
    asked = [file for path in asking if (file := opened(path)) is not None]
    found = [one for file in asked for one in hosted_in(file, files, opened)]
    return replace(project, hosted=agreeing(found)) if found else project


def carrying(project: Project, files: Mapping[str, bytes], settings_of: Callable[[str], Settings]) -> Project:
    """``project`` with the wraps of ``files`` that keep, as FSDP1, gradients which another file clears."""
    if "keeps_gathered" not in project.flags:
        return project
    opened = _opening(project, files, settings_of)
    asked = [file for path, data in files.items() if b".zero_grad(" in data and (file := opened(path)) is not None]
    found = [one for file in asked for one in kept_clearings(file.module, file) if is_to_carry(one)]
    wraps = {(wrap.path, wrap.call.lineno) for one in found for wrap in one.wraps if wrap.path in files}
    return replace(project, carried=frozenset(wraps)) if wraps else project


def _opening(
    project: Project, files: Mapping[str, bytes], settings_of: Callable[[str], Settings]
) -> Callable[[str], File | None]:
    """What parses the file at a path; None for one that is left as it is."""

    @cache
    def opened(path: str) -> File | None:
        try:
            text = decode(files[path]).text
            file = File(text, ast.parse(text), path, project, settings_of(path))
        except (SyntaxError, UnicodeDecodeError, LookupError, cst.ParserSyntaxError, ValueError, RecursionError):
            return None
        return file if file.layout.code == text and vendored(file) is None else None

    return opened
