"""What runs have replaced, kept so that it can be put back byte for byte, with git or without."""

from __future__ import annotations

import datetime
import gzip
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.tree import writing
from fsdp_migrate.tree.files import real
from fsdp_migrate.tree.own_folder import OwnFolder, roots

#: So many runs are kept, those written last.
RUNS = 20
_VERSION = 1
_NAME = "undo"


class NoRun(Exception):
    """There is no such run to take back, or it cannot be read."""


class NotKept(Exception):
    """What is to be replaced cannot be kept anywhere."""


@dataclass(frozen=True)
class Kept:
    """One file of a run, by its path from the root: the hashes of what it held before and after, and the copy."""

    path: str
    before: str
    after: str
    copy: Path


@dataclass(frozen=True)
class Run:
    """One run that wrote. ``number`` counts up, ``time`` is that of this machine, as ``2026-01-31 12:00``."""

    number: int
    time: str
    command: str
    files: tuple[Kept, ...]
    folder: Path


@dataclass(frozen=True)
class PutBack:
    """``done``: paths that hold again what they held; ``left``: those that were edited, moved or deleted since."""

    done: tuple[str, ...]
    left: tuple[Kept, ...]


class Runs:
    """The runs that wrote into the tree at ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._own = OwnFolder(root)

    def all(self) -> list[Run]:
        """Every run that can be taken back, the newest first."""
        folders = (entry for place in self._own.existing(_NAME) for entry in place.iterdir() if entry.name.isdecimal())
        runs = (_read(folder) for folder in folders if (folder / "run.json").is_file())
        return sorted(runs, key=lambda run: -run.number)

    def get(self, number: int | None = None) -> Run:
        """The run of that number, by default the newest. Raises :class:`NoRun`."""
        for run in self.all():
            if number in (None, run.number):
                return run
        raise NoRun(f"there is no run {number} to undo" if number else "there is no run to undo")

    def keep(self, changes: Mapping[Path, tuple[bytes, bytes]], command: str) -> int:
        """Keep what files, by their real path under the root, hold before and after; the number of the run.

        Raises :class:`OSError`.
        """
        place = self._own.made(_NAME)
        folder = self._new(place)
        files = []
        for index, (path, (before, after)) in enumerate(changes.items()):
            # Compressed, so that no search of the tree finds the old code.
            (folder / f"{index}.gz").write_bytes(gzip.compress(before, mtime=0))
            named = path.relative_to(self.root).as_posix()
            files.append({"path": named, "before": _hash(before), "after": _hash(after), "copy": f"{index}.gz"})
        now = datetime.datetime.now()
        _write(folder, {"time": f"{now:%Y-%m-%d %H:%M}", "command": command, "files": files})
        for old in sorted((entry for entry in place.iterdir() if entry.name.isdecimal()), key=_number)[:-RUNS]:
            shutil.rmtree(old)
        return int(folder.name)

    def edited(self, run: Run) -> list[Kept]:
        """The files of ``run`` that hold neither what they held before nor what it wrote."""
        return [file for file in run.files if self._held(file) not in (file.before, file.after)]

    def put_back(self, run: Run) -> PutBack:
        """Put back what has not been edited since; the rest is kept. Raises :class:`NoRun`, :class:`OSError`."""
        left = self.edited(run)
        done = [file for file in run.files if file not in left]
        for file in done:
            if self._held(file) != file.before:
                writing.replace(self._place(file), _copied(file))
        if left:
            rest = [{**vars(file), "copy": file.copy.name} for file in left]
            _write(run.folder, {"time": run.time, "command": run.command, "files": rest})
        else:
            self.forget(run)
        return PutBack(tuple(sorted(file.path for file in done)), tuple(left))

    def forget(self, run: Run) -> None:
        """Keep nothing of ``run``."""
        shutil.rmtree(run.folder)

    def _new(self, place: Path) -> Path:
        number = max((_number(entry) for known in self._own.existing(_NAME) for entry in known.iterdir()), default=0)
        while True:
            number += 1
            folder = place / str(number)
            try:
                folder.mkdir()
            except FileExistsError:
                # Another run has just taken the number.
                continue
            return folder

    def _place(self, file: Kept) -> Path:
        place = real(self.root / file.path)
        if not place.is_relative_to(real(self.root)):
            raise NoRun(f"{file.copy.parent / 'run.json'} names {file.path}, which is outside {self.root}")
        return place

    def _held(self, file: Kept) -> str:
        place = self._place(file)
        return _hash(place.read_bytes()) if place.is_file() else ""


def keeper(paths: Sequence[str], command: str) -> Callable[[Mapping[Path, tuple[bytes, bytes]]], None]:
    """Keeps what files under ``paths``, by their real path, hold before and after; raises :class:`NotKept`."""

    def keep(changes: Mapping[Path, tuple[bytes, bytes]]) -> None:
        for root in roots(paths):
            mine = {path: change for path, change in changes.items() if path.is_relative_to(root)}
            try:
                if mine:
                    Runs(root).keep(mine, command)
            except OSError as error:
                why = f"{error.filename or root}: {error.strerror or error}"
                raise NotKept(f"nothing was written: the old files cannot be saved for undo ({why})") from error

    return keep


def _number(folder: Path) -> int:
    return int(folder.name) if folder.name.isdecimal() else 0


def _write(folder: Path, content: Mapping[str, object]) -> None:
    # Last, and whole: a folder without it is that of a run which ended before it wrote anything.
    writing.replace(folder / "run.json", json.dumps({"version": _VERSION, **content}, indent=1).encode())


def _read(folder: Path) -> Run:
    file = folder / "run.json"
    try:
        known = json.loads(file.read_bytes())
        if known["version"] != _VERSION:
            raise NoRun(f"{file} was written by another version of fsdp-migrate: undo it with that version")
        files = [
            Kept(one["path"], one["before"], one["after"], folder / Path(one["copy"]).name) for one in known["files"]
        ]
        return Run(int(folder.name), str(known["time"]), str(known["command"]), tuple(files), folder)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise NoRun(f"{file} is damaged: {error}") from error


def _copied(file: Kept) -> bytes:
    """What the file held before. Raises :class:`NoRun` where the copy is not what was kept."""
    try:
        data = gzip.decompress(file.copy.read_bytes())
    except (OSError, EOFError) as error:
        raise NoRun(f"{file.copy}, which has the old content of {file.path}, cannot be read: {error}") from error
    if _hash(data) != file.before:
        raise NoRun(f"{file.copy}, which has the old content of {file.path}, is damaged")
    return data


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
