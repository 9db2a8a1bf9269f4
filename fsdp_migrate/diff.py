"""Unified diffs in bytes, in the form that ``git apply`` and ``patch -p1`` take."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from fsdp_migrate.gitstate import repository

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_UNSAFE = re.compile(rb'[\x00-\x1f"\\\x7f]')


def unified(path: str, before: bytes, after: bytes) -> Iterator[bytes]:
    """The lines of the diff, each with its end. ``path`` is relative to where the patch will be applied."""
    old, new = _LINE.findall(before), _LINE.findall(after)
    name = os.fsencode(path)
    lines = difflib.diff_bytes(difflib.unified_diff, old, new, _name(b"a/" + name), _name(b"b/" + name))
    for line in lines:
        yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def patch_path(real: Path, directory: Path) -> str:
    """How a patch names a file: relative to ``directory``, or to the file's repository where it lies elsewhere."""
    base = directory if real.is_relative_to(directory) else repository(real.parent) or Path(real.anchor)
    return real.relative_to(base).as_posix()


def _name(name: bytes) -> bytes:
    if _UNSAFE.search(name):
        escaped = _UNSAFE.sub(lambda found: b"\\%03o" % found[0][0], name)
        return b'"' + escaped + b'"'
    # Without the tab, patch reads what follows a space as a date.
    return name + b"\t" if b" " in name else name
