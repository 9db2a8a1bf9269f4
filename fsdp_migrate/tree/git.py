"""What git knows about files: which it tracks, and which hold work that it could not give back."""

from __future__ import annotations

import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

# Set by git while it runs a hook; they would point every question below at the hook's repository.
_HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
_PATHS_PER_CALL = 200


class GitError(Exception):
    """There is a repository, but git would not answer."""


def repository(directory: Path) -> Path | None:
    """The nearest directory upwards that has a ``.git``, without asking git; None outside of any repository."""
    return next((place for place in (directory, *directory.parents) if (place / ".git").exists()), None)


@dataclass(frozen=True)
class Listing:
    """Names relative to the directory that was asked about: files, and directories that are repositories themselves."""

    files: list[str]
    repositories: list[str]


def tracked(directory: Path) -> Listing:
    """What is in the index under ``directory``; a file that was deleted since is still named."""
    listing = Listing([], [])
    for entry in _ask(directory, "ls-files", "-z", "--stage"):
        facts, _, name = entry.partition("\t")
        is_submodule = facts.startswith("160000")
        (listing.repositories if is_submodule else listing.files).append(name)
    return listing


def untracked(directory: Path) -> Listing:
    """What git neither tracks nor ignores under ``directory``."""
    names = _ask(directory, "ls-files", "-z", "--others", "--exclude-standard")
    return Listing([n for n in names if not n.endswith("/")], [n for n in names if n.endswith("/")])


def ignored(directory: Path) -> list[str]:
    """What git ignores under ``directory``; a folder that it ignores as a whole is named, and nothing in it.

    Empty where git ignores ``directory`` itself.
    """
    names = _ask(directory, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    return [] if "./" in names else names


def uncommitted(files: Iterable[Path]) -> set[Path]:
    """Those of ``files`` (real paths) that git shows as modified, staged or untracked, or would not show at all.

    The latter are those that it ignores, those that ``update-index`` has told it not to look at, and its own.

    Files outside of a repository are never among them.
    """
    by_root: dict[Path, list[Path]] = {}
    own: set[Path] = set()
    for file in files:
        root = repository(file.parent)
        if root is not None and ".git" in file.relative_to(root).parts:
            own.add(file)
        elif root is not None:
            by_root.setdefault(root, []).append(file)
    return own | {file for root, group in by_root.items() for file in _shown(root, group)}


def _shown(root: Path, group: list[Path]) -> Iterator[Path]:
    for start in range(0, len(group), _PATHS_PER_CALL):
        names = [str(file.relative_to(root)) for file in group[start : start + _PATHS_PER_CALL]]
        options = ("--porcelain=v1", "-z", "--no-renames", "--untracked-files=all")
        for entry in _ask(root, "--literal-pathspecs", "status", *options, "--", *names):
            yield root / entry[3:]
        ignored = ("ls-files", "-z", "--others", "--ignored", "--exclude-standard")
        yield from (root / name for name in _ask(root, "--literal-pathspecs", *ignored, "--", *names))
        for entry in _ask(root, "--literal-pathspecs", "ls-files", "-z", "-v", "--", *names):
            # "H" is a file that git looks at; lower case is assume-unchanged, "S" skip-worktree.
            if not entry.startswith("H "):
                yield root / entry[2:]


def metadata(root: Path) -> Path:
    """The folder in which git keeps what belongs to this working tree alone. Raises :class:`GitError`."""
    (folder,) = _ask(root, "rev-parse", "--absolute-git-dir")
    return Path(folder.rstrip("\n"))


def snapshot(root: Path) -> str:
    """The tracked files of ``root`` as they are now, as a tree of git; the index stays as it is.

    Raises :class:`GitError`.
    """
    with tempfile.TemporaryDirectory() as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
        _ask(root, "read-tree", "HEAD", **index)
        _ask(root, "add", "--update", **index)
        (tree,) = _ask(root, "write-tree", **index)
    return tree.strip()


def _ask(directory: Path, *arguments: str, **variables: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name not in _HOOK_VARIABLES}
    environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", **variables}
    try:
        answer = subprocess.run(["git", *arguments], cwd=directory, env=environment, capture_output=True, check=False)
    except OSError as error:
        raise GitError(f"could not start git ({error.strerror})") from error
    if answer.returncode != 0:
        reason = os.fsdecode(answer.stderr).strip().splitlines() or [f"exit code {answer.returncode}"]
        raise GitError(f"git answered: {reason[0]}")
    return [os.fsdecode(name) for name in answer.stdout.split(b"\0") if name]


def head(root: Path) -> tuple[str, str]:
    """The commit that is checked out in ``root``, short, and the day of it; empty where there is none."""
    try:
        (said,) = _ask(root, "log", "-1", "--format=%h %cs")
    except (GitError, ValueError):
        return "", ""
    commit, _, day = said.strip().partition(" ")
    return commit, day


def export(root: Path, ref: str, folder: Path) -> None:
    """Write the files of the commit ``ref`` of the repository ``root`` to ``folder``. Raises :class:`GitError`."""
    (commit,) = _ask(root, "rev-parse", "--verify", "--end-of-options", f"{ref}^{{commit}}")
    archive = folder / ".archive.tar"
    _ask(root, "archive", "--format=tar", f"--output={archive}", commit.strip())
    with tarfile.open(archive) as tar:
        # The first releases of Python 3.10 have no filter; links and devices are no part of what is compared.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        for member in tar:
            if member.isfile() or member.isdir():
                tar.extract(member, folder)
    archive.unlink()
