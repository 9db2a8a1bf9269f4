"""The directories of the project around a path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def upwards(target: Path) -> Iterator[Path]:
    """``target`` and the directories above it, up to the root of its repository; a path that is too long has none."""
    start = target.absolute()
    for directory in (start, *start.parents):
        try:
            is_root = (directory / ".git").exists()
        except OSError:
            continue
        yield directory
        if is_root:
            return
