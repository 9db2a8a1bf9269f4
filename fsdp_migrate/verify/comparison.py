"""A whole comparison: the copies, the runs, the noise, the verdict."""

from __future__ import annotations

import contextlib
import math
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.verify.compare.alone import alone
from fsdp_migrate.verify.compare.compare import Comparison, nothing_allowed
from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.compare.noise import NO_ROUNDING, Rounding, measured, rounding_of, tolerated
from fsdp_migrate.verify.compare.traps import Origin, trap, wrong_origin
from fsdp_migrate.verify.recorder.orders import Orders
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.runs import trees
from fsdp_migrate.verify.runs.launch import CannotRun, Run, run
from fsdp_migrate.verify.verdict import Verdict, judge, with_rounding

if TYPE_CHECKING:
    from fsdp_migrate.verify.report.runs_progress import Progress


#: Steps up to which both runs are made again with all modules, where gradients alone do not name a cause.
_DEEPEST = 3


@dataclass(frozen=True)
class Recorded:
    """What every run records; see :class:`Orders`. ``feed``: one more run after, fed what modules got before."""

    steps: int
    deep: int
    seed: int | None
    feed: bool = False


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
class _Side:
    """Where one side runs: ``fresh`` makes a new copy of its tree for each run, or is None."""

    command: tuple[str, ...]
    directory: Path
    origin: Origin | None
    inside: Path = Path()
    remap: tuple[Path, Path] | None = None
    fresh: Path | None = None


def verify(wanted: Wanted, progress: Progress) -> Verdict:
    """Run both sides and compare them. Raises :class:`CannotRun` and ``BadRecording`` with the reason."""
    with _workspace(wanted.keep) as work:
        before, after, notes = _sides(wanted, work)
        runner = _Runner(wanted, work, progress, time.time())
        first = runner.record("before", before)
        again = runner.record("before-again", before) if wanted.repeat else None
        try:
            second = runner.record("after", after)
        except CannotRun as error:
            # What was left to do by hand is the first thing to look at.
            raise CannotRun("\n".join((str(error), *(f"note: {note}" for note in notes)))) from error
        for side, recording, name in ((before, first, "before"), (after, second, "after")):
            problem = wrong_origin(recording, side.origin, name) if side.origin is not None else None
            if problem:
                raise CannotRun(problem)
        verdict = verdict_of(first, second, again, wanted.tolerance)
        if _asks_for_modules(wanted, verdict):
            assert verdict.first is not None
            runner.deep = verdict.first.step + 1
            pair = runner.record("before-deep", before), runner.record("after-deep", after)
            with contextlib.suppress(CannotRun):
                verdict, (first, second) = verdict_of(*pair, again), pair
        if verdict.first is not None and verdict.cause is not None and verdict.cause.is_rounding and wanted.repeat:
            rounding = rounding_of(verdict.comparison, verdict.first)
            rounded = runner.record("before-rounded", before, rounding)
            cause, verdict = verdict.cause, verdict_of(first, second, again, wanted.tolerance, rounded, rounding)
            verdict = with_rounding(verdict, cause)
        if wanted.recorded.feed and verdict.first is not None:
            fed = runner.record("after-fed", after, feed=work / "before")
            verdict = replace(verdict, alone=alone(Comparison(first, fed)))
        return replace(verdict, notes=(*verdict.notes, *notes))


def _asks_for_modules(wanted: Wanted, verdict: Verdict) -> bool:
    """Whether gradients differ and only those of modules can say why: of a 16-bit backward, or before a reduction."""
    first = verdict.first
    unasked = not wanted.recorded.deep and wanted.repeat and wanted.tolerance is None
    if first is None or not unasked or first.question is not Question.GRADIENTS or first.step >= _DEEPEST:
        return False
    return verdict.cause is None and math.isfinite(first.relative)


def verdict_of(
    before: Recording,
    after: Recording,
    again: Recording | None = None,
    tolerance: float | None = None,
    rounded: Recording | None = None,
    rounding: Rounding | None = None,
) -> Verdict:
    """Compare two recordings, with what ``again``, of the same code as ``before``, shows of its noise.

    ``rounded`` is the same code again, its gradients moved by ``rounding``.

    Raises :class:`CannotRun` if they cannot be compared.
    """
    problem = trap(before, after)
    if problem is not None:
        raise CannotRun(problem)
    if tolerance is not None:
        return judge(before, after, tolerated(tolerance), f"a tolerance of {tolerance:g}")
    noisy = [Comparison(before, other) for other in (again, rounded) if other is not None]
    notes = []
    noise = ""
    if again is not None and len(again.steps) == len(before.steps) and not again.earlier:
        itself = judge(before, again)
        if itself.first is not None:
            noise = "the measured noise of the program"
            notes.append(_not_repeatable(itself))
    elif again is not None:
        notes.append(
            "the noise of the program was not measured: its second run read what the first wrote, or ended early"
        )
        noisy = [Comparison(before, other) for other in (rounded,) if other is not None]
    if rounded is not None and not noise:
        noise = "the measured effect of a rounding"
    allowance = measured(noisy, rounding) if noise else nothing_allowed
    return judge(before, after, allowance, noise, notes)


def _not_repeatable(itself: Verdict) -> str:
    from fsdp_migrate.verify.report.facts import place

    first = itself.first
    assert first is not None
    return (
        f"the program does not repeat itself: {place(itself, first)} differs between two runs of the same code; "
        "pass --seed, load data without workers, or call torch.use_deterministic_algorithms(True)"
    )


class _Runner:
    """Starts runs, one after the other, each with its own recording, log and, where there is one, copy.

    ``deep``: of how many steps the next runs record all modules.
    """

    def __init__(self, wanted: Wanted, work: Path, progress: Progress, since: float) -> None:
        self._wanted, self._work, self._progress, self._since = wanted, work, progress, since
        self.deep = wanted.recorded.deep

    def record(self, name: str, side: _Side, rounding: Rounding = NO_ROUNDING, feed: Path | None = None) -> Recording:
        tree = side.directory
        remap = side.remap
        if side.fresh is not None:
            tree = self._work / f"tree-{name}"
            trees.copy(side.fresh, tree)
            tree, remap = tree / side.inside, (side.remap[0], tree) if side.remap is not None else None
        asked, out = self._wanted.recorded, self._work / name
        orders = Orders(
            str(out), asked.steps, True, self.deep, asked.seed, self._since, rounding.scale, rounding.sizes,
            keeps=asked.feed and name == "before", feed=None if feed is None else str(feed),
        )  # fmt: skip
        log = self._work / f"{name}.log"
        watch = self._progress.begin(name, asked.steps)
        run(Run(name, side.command, tree, log, orders, remap), self._wanted.timeout, watch)
        if not out.is_dir():
            raise CannotRun(
                f"the run {name} ended without an optimizer step that could be recorded: it does not train, or its "
                "Python ignores PYTHONPATH (-I, -E, -S, or a launcher that clears the environment)"
            )
        return read(out)


@contextlib.contextmanager
def _workspace(keep: Path | None) -> Iterator[Path]:
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


def _sides(wanted: Wanted, work: Path) -> tuple[_Side, _Side, list[str]]:
    if wanted.in_place:
        here = Path.cwd()
        return _Side(wanted.before, here, None), _Side(wanted.after, here, None), []
    if wanted.before_dir is not None and wanted.after_dir is not None:
        old, new = wanted.before_dir.resolve(), wanted.after_dir.resolve()
        before = _Side(wanted.before, old, Origin(old, (new,)))
        return before, _Side(wanted.after, new, Origin(new, (old,))), []
    source = trees.source(Path.cwd())
    pristine = work / "source-before"
    notes: list[str] = []
    trees.export(source.root, wanted.before_ref or "HEAD", pristine)
    trees.link(source.root, pristine, wanted.link)
    others = (source.root,)
    command = trees.command(wanted.before, Path.cwd(), pristine / source.inside)
    before = _Side(command, pristine, Origin(work, others), source.inside, (source.root, pristine), fresh=pristine)
    if wanted.after_ref is not None:
        later = work / "source-after"
        trees.export(source.root, wanted.after_ref, later)
        trees.link(source.root, later, wanted.link)
        return before, replace(before, directory=later, remap=(source.root, later), fresh=later), notes
    if wanted.before_ref is not None:
        current = _Side(wanted.after, source.root / source.inside, Origin(source.root, (work,)))
        return before, current, notes
    migrated = work / "source-after"
    trees.copy(pristine, migrated)
    done = trees.rewrite(migrated, wanted.to)
    if trees.has_uncommitted(source.root):
        notes.append("the repository has uncommitted changes, which are not in the comparison")
    notes += [f"left to do by hand: {place}" for place in done.left]
    changed = tuple(work / "tree-after" / file.relative_to(migrated) for file in done.changed)
    after = _Side(
        command, migrated, Origin(work, others, changed), source.inside, (source.root, migrated), fresh=migrated
    )
    return before, after, notes
