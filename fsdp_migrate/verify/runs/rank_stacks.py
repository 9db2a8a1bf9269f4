"""Where the ranks of a run stand that does not end: each is asked for its stack."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

#: Seconds that a rank has to answer.
_PATIENCE = 5.0
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "/verify/recorder/", "<frozen ")


def stacks(recording: Path) -> Iterator[str]:
    """A line for each rank of the run that records to ``recording``, in order: what it runs, and what that waits in."""
    folder = recording.with_name(f"{recording.name}-stacks")
    files = sorted(folder.glob("*.txt")) if folder.is_dir() and hasattr(signal, "SIGUSR2") else []
    asked = [file for file in files if _ask(int(file.stem))]
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and not all(_FRAME.search(_text(file)) for file in asked):
        time.sleep(0.05)
    told = [_text(file).partition("\n") for file in asked]
    for rank, _, text in sorted(told, key=lambda one: int(one[0] or 0)):
        yield f"rank {rank}: {_where(text)}"


def _ask(process: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(process, signal.SIGUSR2)
        return True
    return False


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def _where(text: str) -> str:
    """The innermost line of the program itself, and the innermost of all, which may be in a library."""
    latest = text.rpartition("(most recent call first)")[2]
    frames = [frame.groupdict() for frame in _FRAME.finditer(latest)]
    if not frames:
        return "does not answer"
    inner = frames[0]
    own = next((one for one in frames if not any(part in one["file"] for part in _LIBRARIES)), inner)
    where = f"{Path(own['file']).name}:{own['line']} in {own['function']}"
    return where if own is inner else f"{where}, in {inner['function']} ({Path(inner['file']).name}:{inner['line']})"
