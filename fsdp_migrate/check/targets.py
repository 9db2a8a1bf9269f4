"""Which of the named paths are sources, which are checkpoints: told by what is in them, not by how they are called."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fsdp_migrate.checkpoints.entries import BadCheckpoint
from fsdp_migrate.checkpoints.read.find import SPECIAL, Found, find
from fsdp_migrate.tree import git as gitstate
from fsdp_migrate.tree.files import SUFFIXES, real, refuse_missing
from fsdp_migrate.tree.selection import Selection

_LFS = b"version https://git-lfs.github.com/spec/"
#: How the files of checkpoints begin: an archive, and a pickle of protocol 2 or later.
_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


@dataclass(frozen=True)
class Targets:
    """``sources`` are paths for :func:`fsdp_migrate.tree.files.discover`; ``errors``, ``skipped``: (path, reason).

    A folder that was named stands among the sources and has its checkpoints in ``checkpoints`` as well.
    """

    sources: tuple[str, ...]
    checkpoints: tuple[Found, ...]
    errors: tuple[tuple[str, str], ...]
    skipped: tuple[tuple[str, str], ...]


def sort(paths: Sequence[str], selection: Selection) -> Targets:
    """Tell sources from checkpoints. Raises :class:`NoSuchPath` before anything else is done.

    A file that is part of a checkpoint stands for the whole of it: the other ranks' files, its folder, its index.
    Under a folder in a git repository, what git ignores is passed over, as it is with sources; outside of one, or where
    git ignores the folder itself, everything counts.
    """
    roots = [Path(path) for path in paths]
    for name in paths:
        refuse_missing(name)
    sources: list[str] = []
    found: dict[Path, Found] = {}
    errors: list[tuple[str, str]] = []
    # Hundreds of files may be named that lie in one folder.
    within = cache(lambda folder: find(folder, lambda inner: False))
    special: list[Path] = []
    for name, path in zip(paths, roots, strict=True):
        refused = False
        try:
            here = _under(path, selection, special.append) if os.path.isdir(path) else _around(path, within)  # noqa: PTH112
        except (BadCheckpoint, OSError) as error:
            errors.append((path.as_posix(), str(error)))
            here = []
            refused = True
        if path.is_dir() or not (here or refused):
            sources.append(name)
        for one in here:
            found.setdefault(real(one.path), one)
    whole: list[Found] = []
    skipped = [(path.as_posix(), SPECIAL) for path in special]
    for one in sorted(found.values(), key=lambda entry: entry.path):
        pointers = [file for file in one.files if _begins(file, (_LFS,))]
        if pointers:
            reason = "this is a Git LFS pointer, not the file itself: run git lfs pull"
            skipped.append((pointers[0].as_posix(), reason))
        else:
            whole.append(one)
    return Targets(tuple(sources), tuple(whole), tuple(errors), tuple(skipped))


def _under(folder: Path, selection: Selection, passed_over: Callable[[Path], object]) -> list[Found]:
    ignored = _ignored(folder)

    def is_entered(inner: Path) -> bool:
        is_left_out = inner.name in selection.skipped_directories or selection.excludes(inner, is_directory=True)
        return not is_left_out and inner not in ignored

    def is_passed_over(file: Path) -> bool:
        return file in ignored or selection.excludes(file)

    entered = find(folder, is_entered, lambda special: is_passed_over(special) or passed_over(special))
    return [found for found in entered if not all(map(is_passed_over, found.files))]


def _ignored(folder: Path) -> set[Path]:
    """The files and folders under ``folder`` that git ignores; empty where it has nothing to say."""
    if gitstate.repository(real(folder)) is None:
        return set()
    try:
        names = gitstate.ignored(folder)
    except gitstate.GitError:
        return set()
    return {folder / name for name in names}


def _around(file: Path, within: Callable[[Path], list[Found]]) -> list[Found]:
    """The checkpoint that ``file`` is a part of; none for a source. ``within`` gives those that lie in a folder."""
    if file.suffix in SUFFIXES and not _begins(file, _STARTS):
        return []
    beside = within(file.parent) if file.parent.is_dir() else []
    parts = [found for found in beside if file.name in {part.name for part in found.files}]
    if parts or not _begins(file, _STARTS):
        return parts
    return find(file)


def _begins(file: Path, starts: tuple[bytes, ...]) -> bool:
    if not file.is_file():
        return False
    try:
        with file.open("rb") as stream:
            return stream.read(max(map(len, starts))).startswith(starts)
    except OSError:
        # Reading it as a whole fails for the same reason, and that is reported.
        return False
