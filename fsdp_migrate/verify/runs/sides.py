"""What is run: the two sides of a comparison, each where its code is, and the runs of them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsdp_migrate.verify.compare.noise import NO_ROUNDING, Rounding
from fsdp_migrate.verify.compare.traps import Origin
from fsdp_migrate.verify.recorder.orders import Orders
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.runs import trees
from fsdp_migrate.verify.runs.launch import CannotRun, Run, run

if TYPE_CHECKING:
    from fsdp_migrate.verify.report.runs_progress import Progress

UNCOMMITTED = "the repository has uncommitted changes, which are not in the comparison"


@dataclass(frozen=True)
class Recorded:
    """What every run records; see :class:`Orders`. ``feed``: one more run after, fed what modules got before.

    ``cpu``: answer for the GPUs of programs that run without one.
    """

    steps: int
    deep: int
    seed: int | None
    feed: bool = False
    cpu: bool = False


@dataclass(frozen=True)
class Wanted:
    """What was asked for. ``in_place``: both commands run where they were given.

    ``after_ref``, beside ``before_ref``: run these files of git in place of the working tree.
    """

    before: tuple[str, ...]
    after: tuple[str, ...]
    recorded: Recorded
    in_place: bool = False
    to: str = "native"
    before_dir: Path | None = None
    after_dir: Path | None = None
    before_ref: str | None = None
    after_ref: str | None = None
    link: tuple[str, ...] = ()
    repeat: bool = True
    timeout: float | None = None
    keep: Path | None = None
    tolerance: float | None = None


@dataclass(frozen=True)
class Side:
    """Where one side runs: ``fresh`` makes a new copy of its tree for each run, or is None."""

    command: tuple[str, ...]
    directory: Path
    origin: Origin | None
    inside: Path = Path()
    remap: tuple[Path, Path] | None = None
    fresh: Path | None = None


class Runner:
    """Starts runs, one after the other, each with its own recording, log and, where there is one, copy.

    ``deep``: of how many steps the next runs record all modules. ``timeout``: how long each of them may take.
    """

    def __init__(self, wanted: Wanted, work: Path, progress: Progress, since: float) -> None:
        self._wanted, self._work, self._progress, self._since = wanted, work, progress, since
        self.deep = wanted.recorded.deep
        self.timeout = wanted.timeout

    def record(
        self,
        name: str,
        side: Side,
        rounding: Rounding = NO_ROUNDING,
        feed: Path | None = None,
        carried: Path | None = None,
        **changed: Any,
    ) -> Recording:
        """Run ``side``; ``changed`` are fields of its orders, and ``carried`` is a copy whose new files it gets."""
        tree = side.directory
        remap = side.remap
        if side.fresh is not None:
            copied = self.tree(name)
            trees.copy(side.fresh, copied)
            if carried is not None:
                trees.carry(carried, copied)
            tree = copied / side.inside
            remap = (side.remap[0], tree) if side.remap is not None else None
        asked, out = self._wanted.recorded, self._work / name
        orders = replace(
            Orders(
                str(out), asked.steps, True, self.deep, asked.seed, self._since, rounding.scale, rounding.sizes,
                keeps=asked.feed and name == "before", feed=None if feed is None else str(feed),
                cpu=asked.cpu,
            ),
            **changed,
        )  # fmt: skip
        log = self._work / f"{name}.log"
        watch = self._progress.begin(name, orders.steps)
        run(Run(name, side.command, tree, log, orders, remap), self.timeout, watch)
        if not out.is_dir():
            raise CannotRun(
                f'the run "{name}" ended without an optimizer step that could be recorded: it does not train, or its '
                "Python ignores PYTHONPATH (-I, -E, -S, or a launcher that clears the environment)"
            )
        return read(out)

    def tree(self, name: str) -> Path:
        """The copy in which the run ``name`` is made."""
        return self._work / f"tree-{name}"


@contextlib.contextmanager
def workspace(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        if keep.exists() and any(keep.iterdir()):
            raise CannotRun(f"--keep {keep}: the folder is not empty")
        keep.mkdir(parents=True, exist_ok=True)
        yield keep.resolve()
        return
    directory = Path(tempfile.mkdtemp(prefix="fsdp-migrate-verify-")).resolve()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def sides(wanted: Wanted, work: Path) -> tuple[Side, Side, list[str]]:
    if wanted.in_place:
        here = Path.cwd()
        return Side(wanted.before, here, None), Side(wanted.after, here, None), []
    if wanted.before_dir is not None and wanted.after_dir is not None:
        old, new = wanted.before_dir.resolve(), wanted.after_dir.resolve()
        before = Side(wanted.before, old, Origin(old, (new,)))
        return before, Side(wanted.after, new, Origin(new, (old,))), []
    source = trees.source(Path.cwd())
    notes: list[str] = []
    before = committed(wanted, work, source)
    pristine = before.directory
    if wanted.after_ref is not None:
        later = work / "source-after"
        trees.export(source.root, wanted.after_ref, later)
        trees.link(source.root, later, wanted.link)
        return before, replace(before, directory=later, remap=(source.root, later), fresh=later), notes
    if wanted.before_ref is not None:
        current = Side(wanted.after, source.root / source.inside, Origin(source.root, (work,)))
        return before, current, notes
    migrated = work / "source-after"
    trees.copy(pristine, migrated)
    done = trees.rewrite(migrated, wanted.to)
    if trees.has_uncommitted(source.root):
        notes.append(UNCOMMITTED)
    notes += [f"left to do by hand: {place}" for place in done.left]
    return before, migrated_side(wanted, before, "after", [file.relative_to(migrated) for file in done.changed]), notes


def committed(wanted: Wanted, work: Path, source: trees.Source) -> Side:
    """The side before where it is a commit: HEAD, if no other was named."""
    pristine = work / "source-before"
    trees.export(source.root, wanted.before_ref or "HEAD", pristine)
    trees.link(source.root, pristine, wanted.link)
    command = trees.command(wanted.before, Path.cwd(), pristine / source.inside)
    origin = Origin(work, (source.root,))
    return Side(command, pristine, origin, source.inside, (source.root, pristine), fresh=pristine)


def migrated_side(wanted: Wanted, before: Side, name: str, changed: Iterable[Path]) -> Side:
    """The run ``name`` of what a rewrite has made of ``before`` in the folder ``source-NAME`` beside it."""
    assert before.origin is not None and before.remap is not None
    work = before.directory.parent
    tree = work / f"source-{name}"
    command = trees.command(wanted.after, Path.cwd(), before.directory / before.inside)
    origin = replace(before.origin, changed=tuple(work / f"tree-{name}" / file for file in changed))
    return replace(before, command=command, directory=tree, origin=origin, remap=(before.remap[0], tree), fresh=tree)
