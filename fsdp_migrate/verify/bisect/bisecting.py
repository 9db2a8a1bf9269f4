"""The runs of a search for the edits that make a rewrite differ: each in a copy of its own, which is removed again."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.pipeline.request import Request
from fsdp_migrate.tree import writing
from fsdp_migrate.tree.undoing import Runs
from fsdp_migrate.verify.bisect.culprits import Bisected, Trial, Watch, bisected
from fsdp_migrate.verify.bisect.forms import Forms
from fsdp_migrate.verify.comparison import Baseline
from fsdp_migrate.verify.recording.recording import BadRecording
from fsdp_migrate.verify.runs import trees
from fsdp_migrate.verify.runs.launch import CannotRun
from fsdp_migrate.verify.runs.sides import UNCOMMITTED, Wanted, committed, migrated_side, workspace

if TYPE_CHECKING:
    from fsdp_migrate.verify.report.runs_progress import Progress

#: A form that fits the others badly may hang: so many times as long as the run before it may take, and these seconds.
_TIMES, _LEAST_SECONDS = 5, 60.0


@dataclass(frozen=True)
class Versions:
    """What a file holds ``before``, in the rewrite as it is, and with the edits that were found in their other form."""

    before: bytes
    native: bytes
    other: bytes


@dataclass(frozen=True)
class Bisection:
    """What came of it, and the files of both rewrites by path. ``repeats``: whether two runs before were the same."""

    found: Bisected
    repeats: bool
    files: Mapping[str, Versions]
    notes: tuple[str, ...]

    @property
    def moves_on(self) -> bool:
        """Whether the other form of what was found is FSDP2, too: that of a configuration is FSDP1's."""
        return bool(self.found.edits) and not any(edit.is_configuration for edit in self.found.edits)


def bisect(wanted: Wanted, asked: Callable[[Path], Request], watch: Watch, progress: Progress) -> Bisection:
    """Compare a commit with what ``asked`` makes of it, and look for the edits that make them differ.

    Raises :class:`CannotRun` and ``BadRecording`` where the run before fails.
    """
    source = trees.source(Path.cwd())
    with workspace(wanted.keep) as work:
        before = committed(wanted, work, source)
        forms = Forms(asked(before.directory))
        began = time.monotonic()
        baseline = Baseline(wanted, work, before, progress)
        if wanted.timeout is None:
            spent = (time.monotonic() - began) / (2 if wanted.repeat else 1)
            baseline.runner.timeout = _TIMES * spent + _LEAST_SECONDS
        trials = 0

        def run(files: Mapping[str, bytes]) -> Trial:
            nonlocal trials
            name = f"after-{trials}" if trials else "after"
            trials += 1
            after = migrated_side(wanted, before, name, map(Path, files))
            trees.copy(before.directory, after.directory)
            for path, data in files.items():
                (after.directory / path).write_bytes(data)
            try:
                return Trial(baseline.against(after, name, closely=name == "after"))
            except (CannotRun, BadRecording) as error:
                return Trial(None, str(error), baseline.runner.tree(name))
            finally:
                if wanted.keep is None:
                    shutil.rmtree(after.directory, ignore_errors=True)
                    shutil.rmtree(baseline.runner.tree(name), ignore_errors=True)

        found = bisected(forms, run, watch)
        native, other = forms.files(frozenset()), found.other or {}
        files = {}
        for path in sorted({*native, *other}):
            old = forms.before(path)
            files[path] = Versions(old, native.get(path, old), other.get(path, old))
        notes = [f"left to do by hand: {place}" for place in forms.left]
        if wanted.before_ref is None and trees.has_uncommitted(source.root):
            notes.append(UNCOMMITTED)
        return Bisection(found, baseline.does_repeat(), files, tuple(notes))


def apply(root: Path, bisection: Bisection, command: str) -> list[str]:
    """Write the rewrite with the other form of what was found into the tree at ``root``; the files that changed.

    Files may hold what is rewritten, or the rewrite. Raises :class:`CannotRun`, and nothing is written, where one of
    them holds something else. What they held is kept for undo, as that of ``command``.
    """
    held = {path: (root / path).read_bytes() if (root / path).is_file() else None for path in bisection.files}
    strange = [path for path, one in bisection.files.items() if held[path] not in (one.before, one.native, one.other)]
    if strange:
        raise CannotRun(f"{', '.join(strange)}: neither the old code nor its rewrite; nothing was written")
    changes = {
        (root / path).resolve(): (now, bisection.files[path].other)
        for path, now in held.items()
        if now is not None and now != bisection.files[path].other
    }
    try:
        Runs(root).keep(changes, command)
        for file, (now, other) in changes.items():
            writing.replace(file, other, expected=now)
    except OSError as error:
        reason = f"{error.filename or root}: {error.strerror or error}"
        raise CannotRun(f"{reason}; fsdp-migrate undo restores the files written so far") from error
    return sorted(file.relative_to(root).as_posix() for file in changes)
