"""The other files of a program, parsed as the one that asks."""

from __future__ import annotations

import ast
from importlib.util import decode_source

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once


def other_file(path: str, file: File) -> File | None:
    """The file at ``path`` of the program of ``file``; None where it cannot be parsed."""
    known = _known(file.module, file)
    if path not in known:
        known[path] = _parsed(path, file)
    return known[path]


@once
def _known(module: cst.Module, file: File) -> dict[str, File | None]:
    return {}


def _parsed(path: str, file: File) -> File | None:
    source = file.project.sources.get(path)
    if source is None:
        return None
    try:
        text = decode_source(source)
        return File(text, ast.parse(text), path, file.project, file.settings)
    except (SyntaxError, UnicodeDecodeError, LookupError, cst.ParserSyntaxError, ValueError, RecursionError):
        return None
