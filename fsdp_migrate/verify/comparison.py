"""A whole comparison: the copies, the runs, the noise, the verdict."""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from fsdp_migrate.verify.compare.alone import alone
from fsdp_migrate.verify.compare.compare import Comparison, nothing_allowed
from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.compare.noise import Rounding, measured, rounding_of, tolerated
from fsdp_migrate.verify.compare.traps import trap, wrong_origin
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.runs.launch import CannotRun
from fsdp_migrate.verify.runs.sides import Runner, Side, Wanted, sides, workspace
from fsdp_migrate.verify.verdict import Verdict, judge, with_rounding
from fsdp_migrate.verify.written import compare

if TYPE_CHECKING:
    from pathlib import Path

    from fsdp_migrate.verify.report.runs_progress import Progress


#: Steps up to which both runs are made again with all modules, where gradients alone do not name a cause.
_DEEPEST = 3


def verify(wanted: Wanted, progress: Progress) -> Verdict:
    """Run both sides and compare them. Raises :class:`CannotRun` and ``BadRecording`` with the reason."""
    with workspace(wanted.keep) as work:
        before, after, notes = sides(wanted, work)
        baseline = Baseline(wanted, work, before, progress)
        try:
            verdict = baseline.against(after, "after")
        except CannotRun as error:
            # What was left to do by hand is the first thing to look at.
            raise CannotRun("\n".join((str(error), *(f"note: {note}" for note in notes)))) from error
        return replace(verdict, notes=(*verdict.notes, *notes))


class Baseline:
    """The run before, made once, or twice to measure noise, against which runs after are compared."""

    def __init__(self, wanted: Wanted, work: Path, side: Side, progress: Progress) -> None:
        self._wanted, self._work, self._side = wanted, work, side
        self.runner = Runner(wanted, work, progress, time.time())
        self._first = self.runner.record("before", side)
        self._again = self.runner.record("before-again", side) if wanted.repeat else None
        _refuse_strange(self._first, side, "before")

    def does_repeat(self) -> bool:
        """Whether its two runs were the same, as far as that is known."""
        if self._again is None or trap(self._first, self._again) is not None:
            return True
        return judge(self._first, self._again).first is None

    def against(self, after: Side, name: str, closely: bool = True) -> Verdict:
        """The verdict about a run of ``after``. Raises :class:`CannotRun` and ``BadRecording``.

        ``closely``: where gradients differ first and no cause is known, both runs are made again with all modules.
        """
        wanted, first, runner = self._wanted, self._first, self.runner
        second = runner.record(name, after)
        _refuse_strange(second, after, "after")
        verdict = verdict_of(first, second, self._again, wanted.tolerance)
        if closely and _asks_for_modules(wanted, verdict):
            assert verdict.first is not None
            usual, runner.deep = runner.deep, verdict.first.step + 1
            pair = runner.record("before-deep", self._side), runner.record(f"{name}-deep", after)
            runner.deep = usual
            with contextlib.suppress(CannotRun):
                verdict, (first, second) = verdict_of(*pair, self._again), pair
        rounding = rounding_in(verdict)
        if rounding is not None and wanted.repeat:
            rounded = runner.record(f"before-rounded-{name}", self._side, rounding)
            verdict = measured_verdict(verdict, first, second, self._again, rounded)
        if wanted.recorded.feed and closely and verdict.first is not None:
            fed = runner.record(f"{name}-fed", after, feed=self._work / "before")
            verdict = replace(verdict, alone=alone(Comparison(first, fed)))
        return self._with_written(verdict, after, name)

    def _with_written(self, verdict: Verdict, after: Side, name: str) -> Verdict:
        """The same, with what the checkpoints say that both runs wrote into their copies."""
        if self._side.fresh is None or after.fresh is None:
            return verdict
        try:
            written = compare(self.runner.tree("before"), self.runner.tree(name), self._side.fresh)
        except ModuleNotFoundError as error:
            note = f"checkpoints that the runs wrote were not compared: {error.name} is not installed"
            return replace(verdict, notes=(*verdict.notes, note))
        return replace(verdict, written=written)


def rounding_in(verdict: Verdict) -> Rounding | None:
    """The rounding that two runs differ by first, None where it is something else."""
    if verdict.first is None or verdict.cause is None or not verdict.cause.is_rounding:
        return None
    return rounding_of(verdict.comparison, verdict.first)


def shown_by(before: Path, after: Path) -> Rounding:
    """The same of two recordings on disk. Raises :class:`CannotRun` where it is something else."""
    rounding = rounding_in(verdict_of(read(before), read(after)))
    if rounding is None:
        raise CannotRun(
            "the first difference between the two recordings is not a rounding difference: compare shows what it is"
        )
    return rounding


def measured_verdict(
    verdict: Verdict, before: Recording, after: Recording, again: Recording | None, rounded: Recording
) -> Verdict:
    """``verdict``, with what ``rounded`` shows: the run before, with the rounding that both differ by first."""
    rounding = rounding_in(verdict)
    if rounding is None or verdict.cause is None:
        return verdict
    return with_rounding(verdict_of(before, after, again, None, rounded, rounding), verdict.cause)


def _refuse_strange(recording: Recording, side: Side, name: str) -> None:
    problem = wrong_origin(recording, side.origin, name) if side.origin is not None else None
    if problem:
        raise CannotRun(problem)


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
            "the noise of the program was not measured: its second run read files of the first, or ended early"
        )
        noisy = [Comparison(before, other) for other in (rounded,) if other is not None]
    if rounded is not None and not noise:
        noise = "the measured effect of rounding"
    allowance = measured(noisy, rounding) if noise else nothing_allowed
    return judge(before, after, allowance, noise, notes)


def _not_repeatable(itself: Verdict) -> str:
    from fsdp_migrate.verify.report.facts import place

    first = itself.first
    assert first is not None
    return (
        f"the program is not deterministic: {place(itself, first)} differs between two runs of the same code; "
        "pass --seed, load data without workers, or call torch.use_deterministic_algorithms(True)"
    )
