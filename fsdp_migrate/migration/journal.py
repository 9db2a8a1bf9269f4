"""What a migration has done so far, in the repository's own ``.git``: enough to go on, and to put every byte back."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from fsdp_migrate.tree import writing
from fsdp_migrate.tree.git import metadata

_VERSION = 1


class NoJournal(Exception):
    """There is no migration to go on with or to take back; or one that cannot be read."""


class ChangedSince(Exception):
    """Files hold neither what they held before the migration nor what it wrote; the message names them."""


@dataclass(frozen=True)
class Options:
    """What the user asked for. ``inside`` is the folder, from the root, in which the command was given."""

    command: tuple[str, ...]
    to: str = "native"
    steps: int = 5
    link: tuple[str, ...] = ()
    timeout: float | None = None
    inside: str = "."


@dataclass(frozen=True)
class Journal:
    """``stage``: the last that is done of checked, traced, rewritten and verified.

    ``before`` is the tree of git that is migrated, ``seconds`` what each stage took, ``files`` the hashes of what is
    rewritten, by path from the root: before, and after.
    """

    options: Options
    stage: str = "checked"
    before: str = ""
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)


class Desk:
    """The folder of a migration of the repository at ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = metadata(root) / "fsdp-migrate"
        self.trace = self.folder / "trace.json"
        self._file = self.folder / "migration.json"

    @property
    def is_open(self) -> bool:
        """Whether a migration has begun and is not over."""
        return self._file.exists()

    def write(self, journal: Journal) -> None:
        """Keep ``journal``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        writing.replace(self._file, json.dumps({"version": _VERSION, **asdict(journal)}).encode())

    def read(self) -> Journal:
        """What is kept. Raises :class:`NoJournal`."""
        try:
            known = json.loads(self._file.read_text(encoding="utf-8"))
            if known.pop("version") != _VERSION:
                raise NoJournal(f"{self._file} is of another version of fsdp-migrate: go on with that one")
            options = known.pop("options")
            options["command"], options["link"] = tuple(options["command"]), tuple(options["link"])
            files = {path: (before, after) for path, (before, after) in known.pop("files").items()}
            return Journal(Options(**options), files=files, **known)
        except FileNotFoundError as error:
            raise NoJournal("no migration has begun here") from error
        except (ValueError, KeyError, TypeError) as error:
            raise NoJournal(f"{self._file} is damaged: {error}") from error

    def put(self, journal: Journal, changes: Mapping[str, tuple[bytes, bytes]]) -> Journal:
        """Write files, by path from the root, once what they held before lies here."""
        for path, (before, _) in changes.items():
            kept = self._kept(path)
            kept.parent.mkdir(parents=True, exist_ok=True)
            writing.replace(kept, before)
        journal = replace(journal, files={path: (_hash(old), _hash(new)) for path, (old, new) in changes.items()})
        self.write(journal)
        for path, (before, after) in changes.items():
            writing.replace(self.root / path, after, expected=before)
        return journal

    def put_back(self, journal: Journal) -> list[str]:
        """Give every file that was written the bytes that it had; their paths. Raises :class:`ChangedSince`."""
        left = [path for path in journal.files if self._is_changed(path, journal.files[path])]
        if left:
            kept = self.folder / "before"
            raise ChangedSince(f"{', '.join(left)}: changed since; nothing is put back, what was before is in {kept}")
        for path, (before, _) in journal.files.items():
            if _hash((self.root / path).read_bytes()) != before:
                writing.replace(self.root / path, self._kept(path).read_bytes())
        return sorted(journal.files)

    def close(self) -> None:
        """The migration is over."""
        shutil.rmtree(self.folder)

    def _kept(self, path: str) -> Path:
        return self.folder / "before" / path

    def _is_changed(self, path: str, known: tuple[str, str]) -> bool:
        file = self.root / path
        return not file.is_file() or _hash(file.read_bytes()) not in known


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
