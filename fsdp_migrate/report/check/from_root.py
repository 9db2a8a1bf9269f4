"""How hosts of repositories name files: from the root of the repository, wherever in it the check runs."""

from __future__ import annotations

import os
from pathlib import Path

from fsdp_migrate.tree.git import repository


def root() -> Path:
    """The repository in which the command runs; its working directory outside of any."""
    return repository(Path.cwd()) or Path.cwd()


def whole(path: str) -> Path:
    """``path`` without what leads back and forth in it; links stay."""
    return Path(os.path.normpath(Path.cwd() / path))


def from_root(path: str) -> str:
    """``path`` from the root, or as it is where it lies elsewhere."""
    file, base = whole(path), root()
    return file.relative_to(base).as_posix() if file.is_relative_to(base) else path
