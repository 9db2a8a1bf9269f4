"""A run that is stopped and resumed by the migrated code, against the run before that never stopped."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fsdp_migrate.checkpoints.entries import BadCheckpoint
from fsdp_migrate.checkpoints.judge.loading import traps
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from fsdp_migrate.verify.causes.resume import NothingLoaded
from fsdp_migrate.verify.compare.noise import rounding_of
from fsdp_migrate.verify.compare.traps import wrong_origin
from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.recording.rest import rest
from fsdp_migrate.verify.runs import trees
from fsdp_migrate.verify.runs.launch import CannotRun
from fsdp_migrate.verify.runs.sides import Runner, Wanted, sides, workspace
from fsdp_migrate.verify.verdict import Verdict, with_rounding

if TYPE_CHECKING:
    from fsdp_migrate.verify.report.runs_progress import Progress


def resume(wanted: Wanted, step: int, saving: tuple[str, ...], progress: Progress) -> Verdict:
    """Train before without a stop; train before by ``saving`` up to ``step``; resume after; compare what follows.

    Raises :class:`CannotRun` and ``BadRecording`` with the reason.
    """
    if wanted.in_place or wanted.before_dir is not None or wanted.before_ref is not None:
        raise CannotRun("--resume runs HEAD's code and its rewrite: give only the command, after --")
    with workspace(wanted.keep) as work:
        before, after, notes = sides(wanted, work)
        runner = Runner(wanted, work, progress, time.time())
        steps = step + wanted.recorded.steps
        never = runner.record("before", before, steps=steps)
        again = rest(runner.record("before-again", before, steps=steps), step) if wanted.repeat else None
        command = trees.command(saving, Path.cwd(), before.directory / before.inside)
        runner.record("before-saved", replace(before, command=command), steps=step, saves=True)
        saved = runner.tree("before-saved")
        try:
            second = runner.record("after", after, carried=saved)
        except CannotRun as error:
            raise CannotRun("\n".join((str(error), *(f"note: {note}" for note in notes)))) from error
        for side, recording, name in ((before, never, "before"), (after, second, "after")):
            problem = wrong_origin(recording, side.origin, name) if side.origin is not None else None
            if problem:
                raise CannotRun(problem)
        first, second = rest(never, step), _own(second, runner.tree("after"))
        verdict = verdict_of(first, second, again, wanted.tolerance)
        if verdict.first is not None and verdict.cause is not None and verdict.cause.is_rounding and wanted.repeat:
            rounding = rounding_of(verdict.comparison, verdict.first)
            rounded = rest(runner.record("before-rounded", before, rounding, steps=steps, rounds_from=step), step)
            cause, verdict = verdict.cause, verdict_of(first, second, again, wanted.tolerance, rounded, rounding)
            verdict = with_rounding(verdict, cause)
        verdict = explained(verdict, saved)
        return replace(verdict, notes=(*verdict.notes, *notes), resumed=step)


def _own(recording: Recording, tree: Path) -> Recording:
    """``recording`` without the files that it was given to read."""
    outside = tuple(file for file in recording.earlier if not Path(file).is_relative_to(tree))
    return replace(recording, earlier=outside)


def explained(verdict: Verdict, saved: Path) -> Verdict:
    """The same, with what the names in the checkpoints under ``saved`` say about a model that was not loaded."""
    if verdict.cause is None or verdict.cause.cause != NothingLoaded.name:
        return verdict
    try:
        found = [trap for checkpoint in open_all(saved) for trap in traps(checkpoint)]
    except BadCheckpoint:
        return verdict
    for name in ("module-prefix", "compiled"):
        said = next((trap.sentence for trap in found if trap.name == name), None)
        if said is not None:
            message = f"{verdict.cause.message}: {said}"
            cure = "Remove the prefix from the keys before the load, and load with strict=True."
            return replace(verdict, cause=replace(verdict.cause, cause=name, message=message, cure=cure))
    return verdict
