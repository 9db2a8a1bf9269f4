"""What a migration has done so far, in the repository's own ``.git``: enough to go on.

What it replaced is kept where every run that writes keeps it (:mod:`fsdp_migrate.tree.undoing`).
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.tree import writing
from fsdp_migrate.tree.git import metadata
from fsdp_migrate.tree.undoing import NoRun, Runs

if TYPE_CHECKING:
    from fsdp_migrate.verify.bisect.bisecting import Versions

_VERSION = 2


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
    cpu: bool = False


@dataclass(frozen=True)
class Journal:
    """``stage``: the last that is done of checked, traced, rewritten and verified.

    ``before`` is the tree of git that is migrated, ``seconds`` what each stage took, ``run`` the number of the run that
    ``undo`` knows, 0 before there is one.
    """

    options: Options
    stage: str = "checked"
    before: str = ""
    run: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


class Desk:
    """The folder of a migration of the repository at ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = metadata(root) / "fsdp-migrate"
        self.trace = self.folder / "trace.json"
        self._file = self.folder / "migration.json"
        self._runs = Runs(root)

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
                raise NoJournal(
                    f"{self._file} was written by another version of fsdp-migrate: continue with that version"
                )
            options = known.pop("options")
            options["command"], options["link"] = tuple(options["command"]), tuple(options["link"])
            return Journal(Options(**options), **known)
        except FileNotFoundError as error:
            raise NoJournal("no migration was started here") from error
        except (ValueError, KeyError, TypeError) as error:
            raise NoJournal(f"{self._file} is damaged: {error}") from error

    def put(self, journal: Journal, changes: Mapping[str, tuple[bytes, bytes]]) -> Journal:
        """Write files, by path from the root, once what they held before is kept. Raises :class:`OSError`."""
        command = shlex.join(["fsdp-migrate", "migrate", "--", *journal.options.command])
        kept = {self.root / path: change for path, change in changes.items()}
        journal = replace(journal, run=self._runs.keep(kept, command))
        self.write(journal)
        for path, (before, after) in kept.items():
            writing.replace(path, after, expected=before)
        return journal

    def put_form(self, journal: Journal, files: Mapping[str, Versions]) -> Journal:
        """Write the files of a rewrite with some edits in their other form, in place of those that were written.

        What the files held before the migration is kept as before. Raises :class:`OSError`.
        """
        command = shlex.join(["fsdp-migrate", "migrate", "--", *journal.options.command])
        kept = {self.root / path: (one.before, one.other) for path, one in files.items()}
        journal = replace(journal, run=self._runs.keep(kept, command))
        self.write(journal)
        for path, one in files.items():
            writing.replace(self.root / path, one.other, expected=one.native)
        return journal

    def put_back(self, journal: Journal) -> list[str]:
        """Give every file that was written the bytes that it had; their paths. Raises :class:`ChangedSince`."""
        if not journal.run:
            return []
        try:
            run = self._runs.get(journal.run)
        except NoRun:
            # It was taken back by itself already.
            return []
        if edited := self._runs.edited(run):
            names = ", ".join(file.path for file in edited)
            raise ChangedSince(
                f"{names}: changed since, so nothing is restored (fsdp-migrate undo restores the other files)"
            )
        return [*self._runs.put_back(run).done]

    def close(self) -> None:
        """The migration is over."""
        shutil.rmtree(self.folder)
