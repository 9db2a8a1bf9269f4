"""Which files a run is about."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fsdp_migrate.tree import git as gitstate
from fsdp_migrate.tree.regular import text_of
from fsdp_migrate.tree.requirement_files import is_requirements
from fsdp_migrate.tree.selection import ALL_FILES, Selection

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

#: Sources, and configuration of frameworks.
SUFFIXES = (".py", ".ipynb")
SHELL_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch")
TOML_SUFFIX = ".toml"
CONFIG_SUFFIXES = (".yaml", ".yml", ".json", TOML_SUFFIX, *SHELL_SUFFIXES)
#: Larger files of these names are data.
LARGEST_CONFIG = 1_000_000
_FOUND = (*SUFFIXES, *CONFIG_SUFFIXES)
#: A path may have a million characters; a message shows its start.
_SHOWN = 300


class NoSuchPath(Exception):
    """A path that the user named does not exist."""


@dataclass(frozen=True, order=True)
class Source:
    """One file: ``shown`` as the user named it, with forward slashes; ``path`` real and absolute, never a symlink."""

    shown: str
    path: Path

    @property
    def is_notebook(self) -> bool:
        return self.path.suffix == ".ipynb"

    @cached_property
    def is_config(self) -> bool:
        return is_config(self.path)

    @property
    def is_requirements(self) -> bool:
        return is_requirements(self.path.as_posix())


def is_config(path: Path) -> bool:
    """Whether a file is configuration by its name: no source, and no file that a user named and that may be one."""
    return path.suffix in CONFIG_SUFFIXES or is_requirements(path.as_posix())


def discover(paths: Sequence[str], selection: Selection = ALL_FILES) -> list[Source]:
    """The files under ``paths``, each real file once, sorted by name.

    A file is always taken. In a directory: what git tracks and what it neither tracks nor ignores, submodules
    included; outside of git, or where git ignores the whole directory, a walk that honours every ``.gitignore`` in it;
    both without what ``selection`` leaves out, and without copies of its sources in ``build/lib``.
    Directories reached through a symlink are not entered. A dangling symlink is returned, so that reading names it.
    Raises :class:`NoSuchPath` before anything else is done.
    """
    roots = [Path(path) for path in paths]
    for given in paths:
        refuse_missing(given)
    found: dict[Path, tuple[bool, str]] = {}
    # Resolving a path asks the system about every part of it; most files share their directory with others.
    directories: dict[Path, Path] = {}
    for root in roots:
        for place in _files_under(root, selection, set()) if root.is_dir() else [root]:
            is_link = place.is_symlink()
            name = (is_link, place.as_posix())
            if not is_link and place.parent not in directories:
                directories[place.parent] = _resolve(place.parent)
            real = _resolve(place) if is_link else directories[place.parent] / place.name
            # A file that is reached by its own name and by links goes by its own name.
            found[real] = min(found.get(real, name), name)
    named = {_resolve(root) for root in roots}
    kept = (real for real in found if real in named or not _is_built(real, found))
    return sorted(Source(found[real][1], real) for real in kept)


def _is_built(path: Path, found: Container[Path]) -> bool:
    """Whether ``path`` is the copy of a source among ``found`` that setuptools puts into ``build/lib``."""
    root, _, rest = path.as_posix().rpartition("/build/lib/")
    return bool(root) and any(Path(root, sources, rest) in found for sources in ("", "src"))


def refuse_missing(name: str) -> None:
    """Raise :class:`NoSuchPath` where there is nothing of that name, a link to nowhere being something."""
    # Path.exists raises for a name that is longer than names can be, and Path("") is the current directory.
    if not os.path.lexists(name):
        shown = name if len(name) < _SHOWN else f"{name[:_SHOWN]}..."
        raise NoSuchPath(f"no such file or directory: {shown or repr(shown)}")


def real(path: Path) -> Path:
    """``path`` without links; links that lead back to themselves are kept as they are."""
    # Path.resolve raises for such links up to Python 3.12.
    return Path(os.path.realpath(path))


def _resolve(path: Path) -> Path:
    try:
        return path.resolve(strict=True)
    except (OSError, RuntimeError):
        # A dangling link or a loop: keep the name, for reading to fail on.
        return path.absolute()


def _files_under(directory: Path, selection: Selection, visited: set[Path]) -> Iterator[Path]:
    place = real(directory)
    if place in visited:
        return
    visited.add(place)
    listing = _ask_git(directory, selection) if gitstate.repository(place) else None
    if listing is None:
        yield from _walk(directory, selection, ())
        return
    for name in listing.files:
        place = directory / name
        # A link to a directory is not entered, whatever its name.
        is_there = place.is_file() or (place.is_symlink() and not _is_directory(place))
        if _is_read(name) and _is_selected(place, selection) and is_there:
            yield place
    for name in listing.repositories:
        yield from _files_under(directory / name, selection, visited)


def _ask_git(directory: Path, selection: Selection) -> gitstate.Listing | None:
    """None where git has nothing to say: it fails, or it ignores the whole directory that the user named."""
    try:
        tracked, untracked = gitstate.tracked(directory), gitstate.untracked(directory)
    except gitstate.GitError:
        return None
    skipped = selection.skipped_directories
    files = dict.fromkeys(tracked.files + [name for name in untracked.files if not _is_in(name, skipped)])
    repositories = tracked.repositories + [name for name in untracked.repositories if not _is_in(name, skipped)]
    if not files and not repositories:
        return None
    return gitstate.Listing(list(files), repositories)


def _is_read(name: str) -> bool:
    """Whether a file of that name is a source or a configuration; an index of safetensors is part of a checkpoint."""
    if is_requirements(name):
        return True
    return name.endswith(_FOUND) and not name.endswith(".safetensors.index.json")


def _is_selected(file: Path, selection: Selection) -> bool:
    return selection.includes(file) and not selection.excludes(file)


def _is_in(name: str, directories: frozenset[str]) -> bool:
    return not directories.isdisjoint(PurePosixPath(name).parts)


def _walk(directory: Path, selection: Selection, above: tuple[tuple[Path, GitIgnoreSpec], ...]) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError:
        # Reading it as a file fails for the same reason, and that is reported like any unreadable file.
        yield directory
        return
    specs = (*above, *_ignore_file(directory))
    for entry in entries:
        place = directory / entry.name
        if entry.is_dir(follow_symlinks=False):
            is_left_out = entry.name in selection.skipped_directories or selection.excludes(place, is_directory=True)
            if not is_left_out and not _is_ignored(place, specs, "/"):
                yield from _walk(place, selection, specs)
            continue
        is_wanted = _is_read(place.as_posix()) and _is_selected(place, selection)
        if is_wanted and _is_file_or_dangling(entry, place) and not _is_ignored(place, specs, ""):
            yield place


def _is_file_or_dangling(entry: os.DirEntry[str], place: Path) -> bool:
    return entry.is_file(follow_symlinks=False) or (entry.is_symlink() and not _is_directory(place))


def _is_directory(place: Path) -> bool:
    # Path.is_dir raises for links that lead to a name that is too long.
    return os.path.isdir(place)  # noqa: PTH112


def _ignore_file(directory: Path) -> list[tuple[Path, GitIgnoreSpec]]:
    try:
        text = text_of(directory / ".gitignore", "surrogateescape")
    except OSError:
        # No such file, or nothing that could be read.
        return []
    from pathspec import GitIgnoreSpec

    return [(directory, GitIgnoreSpec.from_lines(text.splitlines()))]


def _is_ignored(place: Path, specs: tuple[tuple[Path, GitIgnoreSpec], ...], ending: str) -> bool:
    for base, spec in reversed(specs):
        # The nearest file that has a say decides, as in git.
        verdict = spec.check_file(place.relative_to(base).as_posix() + ending).include
        if verdict is not None:
            return verdict
    return False
