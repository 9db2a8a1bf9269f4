"""Where the command keeps what belongs to one project and not to its repository: ``.fsdp-migrate`` in its root."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

from fsdp_migrate.tree import git, writing
from fsdp_migrate.tree.files import real

NAME = ".fsdp-migrate"


def project_root(path: Path) -> Path:
    """The root of the repository around ``path``; without one, the nearest directory in which ``.fsdp-migrate`` is.

    Where there is neither: ``path``, or the directory of a file.
    """
    there = real(path)
    folder = there if there.is_dir() else there.parent
    known = (place for place in (folder, *folder.parents) if (place / NAME).is_dir())
    return git.repository(folder) or next(known, folder)


def roots(paths: Sequence[str]) -> list[Path]:
    """The roots of ``paths``, each once; none is inside of another."""
    found = {project_root(Path(path)) for path in paths}
    return sorted(root for root in found if not any(other in root.parents for other in found))


class OwnFolder:
    """The folders of the project at ``root``: in its tree, and in the user's state folder where that is read-only."""

    def __init__(self, root: Path) -> None:
        from platformdirs import user_state_path

        self.root = root
        name = hashlib.sha256(str(root).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._places = (root / NAME, user_state_path("fsdp-migrate", appauthor=False) / name)

    def existing(self, name: str) -> list[Path]:
        """The folders ``name`` that are there, that of the tree first."""
        return [place / name for place in self._places if (place / name).is_dir()]

    def made(self, name: str) -> Path:
        """A folder ``name`` to write to. Raises :class:`OSError` where neither place can be written to."""
        in_tree, in_state = self._places
        with contextlib.suppress(OSError):
            return _made(in_tree, name)
        return _made(in_state, name)


def _made(place: Path, name: str) -> Path:
    folder = place / name
    folder.mkdir(parents=True, exist_ok=True)
    ignore = place / ".gitignore"
    if not ignore.exists():
        # git then shows nothing of the folder, this file included.
        writing.replace(ignore, b"*\n")
    return folder
