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
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.runs.launch import CannotRun
from fsdp_migrate.verify.runs.sides import Runner, Wanted, sides, workspace
from fsdp_migrate.verify.verdict import Verdict, judge, with_rounding
from fsdp_migrate.verify.written import compare

if TYPE_CHECKING:
    from fsdp_migrate.verify.report.runs_progress import Progress


#: Steps up to which both runs are made again with all modules, where gradients alone do not name a cause.
_DEEPEST = 3


def verify(wanted: Wanted, progress: Progress) -> Verdict:
    """Run both sides and compare them. Raises :class:`CannotRun` and ``BadRecording`` with the reason."""
    with workspace(wanted.keep) as work:
        before, after, notes = sides(wanted, work)
        runner = Runner(wanted, work, progress, time.time())
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
        if before.fresh is not None and after.fresh is not None:
            try:
                written = compare(runner.tree("before"), runner.tree("after"), before.fresh)
                verdict = replace(verdict, written=written)
            except ModuleNotFoundError as error:
                notes.append(f"checkpoints that the runs wrote were not compared: {error.name} is not installed")
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
