"""The directories of the project around a path."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def upwards(target: Path) -> Iterator[Path]:
    """``target`` and the directories above it, up to the root of its repository; a path that is too long has none.

    Outside of a repository the working directory is the last one, or the directory of ``target`` where it is elsewhere:
    what lies above is no part of the project.
    """
    start = target.absolute()
    last = next((one for one in (start, *start.parents) if _exists(one / ".git")), None)
    if last is None:
        here = Path.cwd()
        last = here if start.is_relative_to(here) else start.parent if _exists(start) and start.is_file() else start
    for directory in (start, *start.parents):
        if _exists(directory) or directory == start:
            yield directory
        if directory == last:
            return


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False
