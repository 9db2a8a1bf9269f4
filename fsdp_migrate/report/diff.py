"""Unified diffs in bytes, in the form that ``git apply`` and ``patch -p1`` take."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from fsdp_migrate.pipeline.hunks import LINE
from fsdp_migrate.pipeline.lines import LineMatcher
from fsdp_migrate.pipeline.outcome import RunResult
from fsdp_migrate.tree.git import repository
from fsdp_rules.verdict.result import Changed

_UNSAFE = re.compile(rb'[\x00-\x1f"\\\x7f]')


def patch(result: RunResult, directory: Path) -> Iterator[bytes]:
    """The lines of the patch of a run, to be applied in ``directory``."""
    for file in result.changed:
        if isinstance(file.result, Changed):
            yield from unified(patch_path(file.real, directory), file.before, file.result.source)


def unified(path: str, before: bytes, after: bytes) -> Iterator[bytes]:
    """The lines of the diff, each with its end. ``path`` is relative to where the patch will be applied."""
    old, new = LINE.findall(before), LINE.findall(after)
    name = os.fsencode(path)
    for number, group in enumerate(LineMatcher(old, new).get_grouped_opcodes()):
        if not number:
            yield b"--- " + _name(b"a/" + name) + b"\n"
            yield b"+++ " + _name(b"b/" + name) + b"\n"
        (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        yield f"@@ -{_range(old_start, old_end)} +{_range(new_start, new_end)} @@\n".encode()
        for tag, start, end, into, into_end in group:
            if tag == "equal":
                yield from (_whole(b" " + line) for line in old[start:end])
            else:
                yield from (_whole(b"-" + line) for line in old[start:end])
                yield from (_whole(b"+" + line) for line in new[into:into_end])


def _range(start: int, end: int) -> str:
    """How a patch names lines: from 1, one line without a count, no lines by the line in front of them."""
    length = end - start
    if length == 1:
        return f"{start + 1}"
    return f"{start + 1 if length else start},{length}"


def _whole(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


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
