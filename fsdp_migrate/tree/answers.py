"""Answers that a user has given and that a later run goes on from, kept outside of the project."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fsdp_migrate.tree import writing


class Answers:
    """The answers about the files that ``paths`` name, seen from ``directory``, in a file under ``folder``.

    A file that cannot be read holds none: nothing but the time to answer again is lost.
    """

    def __init__(self, folder: Path, directory: Path, paths: tuple[str, ...]) -> None:
        name = "\0".join([str(directory), *paths])
        self._file = folder / f"answers-{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.json"

    def read(self) -> dict[str, Any]:
        """What was kept; {} where nothing was."""
        try:
            content = json.loads(self._file.read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}

    def keep(self, answers: Mapping[str, Any]) -> None:
        """Replace what was kept. Raises :class:`OSError`."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        writing.replace(self._file, json.dumps(answers).encode())

    def forget(self) -> None:
        """Keep nothing."""
        self._file.unlink(missing_ok=True)
