"""Parity programs recorded before and after a rewrite, and judged as ``fsdp-migrate verify`` judges them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question
from fsdp_migrate.verify.compare.noise import NO_ROUNDING, Rounding, rounding_of
from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording, Step
from fsdp_migrate.verify.verdict import Verdict, with_rounding
from fsdp_rules.settings import Settings
from tests.parity.cpu import fsdp1_on_cpu
from tests.parity.harness import SCRIPT, files_of, rewritten_files
from tests.parity.programs import STEPS, Program
from tests.parity.tolerance import SMALL, tolerance
from tests.pool import Pool

_OF_OPTIMIZER = (Question.GRADIENTS, Question.CLIPPED_GRADIENTS, Question.STATE)


@contextlib.contextmanager
def recorded_beside_its_result() -> Iterator[None]:
    """What is entered around a program: it records to the folder of the file that its argument names.

    The second argument is what gradients are rounded by.
    """
    import importlib

    # The recorder listens to the helpers that it finds; in a run of the command it is told when they are imported.
    importlib.import_module("fsdp_compat")
    arm = importlib.import_module("fsdp_migrate.verify.recorder.arm")
    orders = importlib.import_module("fsdp_migrate.verify.recorder.orders")
    out, rounding = Path(sys.argv[1]).parent / "recording", json.loads(sys.argv.pop())
    with fsdp1_on_cpu(), arm.recorded(orders.Orders(str(out), STEPS, stop=False, **rounding)):
        yield


def record(
    pool: Pool, program: Program, files: Mapping[str, str], directory: Path, rounding: Rounding = NO_ROUNDING
) -> Recording:
    """Train ``files``, some version of those of ``program``, in the new folder ``directory``."""
    directory.mkdir()
    for path, text in files.items():
        (directory / path).write_text(text, encoding="utf-8")
    script = directory / SCRIPT
    arguments = [os.fspath(directory / "result.pt"), json.dumps({"scale": rounding.scale, "rounding": rounding.sizes})]
    pool.run_script(script, program.world_size, arguments, prelude=recorded_beside_its_result)
    return read(directory / "recording")


@dataclass(frozen=True)
class Judged:
    """``found``: what the command says. ``beyond``: the first difference that is larger than the matrix allows."""

    found: Verdict
    beyond: Difference | None


def judged(pool: Pool, program: Program, directory: Path) -> Judged:
    """FSDP1 against what the rewriter makes of the program.

    :raises NotRewrittenError: the rewriter leaves it to a human, which is right for no program of the matrix.
    """
    original = files_of(program)
    before = record(pool, program, original, directory / "before")
    after = record(pool, program, rewritten_files(original, Settings()), directory / "after")
    beyond = larger(program, before, after)
    found = verdict_of(before, after)
    if found.first is None or found.cause is None or not found.cause.is_rounding:
        return Judged(found, beyond)
    rounding = rounding_of(found.comparison, found.first)
    rounded = record(pool, program, original, directory / "rounded", rounding)
    return Judged(with_rounding(verdict_of(before, after, rounded=rounded, rounding=rounding), found.cause), beyond)


def larger(program: Program, before: Recording, after: Recording) -> Difference | None:
    """The first difference that is larger than the parity matrix allows the program; without a tolerance, any."""
    relative = tolerance(program.spec).relative

    def allowed(question: Question, event: int, subject: str) -> float:
        if question in (Question.DATA, Question.INITIAL_WEIGHTS, Question.INITIAL_BUFFERS, Question.SETTINGS):
            return 0.0
        # From the second step on gradients come from weights that differ by as much already: what they make of the
        # weights is held to the tolerance, and they themselves are, unless it is zero, not to be missing.
        later = relative > 0 and event > 0 and question in _OF_OPTIMIZER
        return sys.float_info.max if later else relative

    tally = Comparison(before, after, allowed).tally
    found = (
        difference
        for question in Question
        if question is not Question.ENVIRONMENT
        for difference in tally.of(question)
        if not _is_small(difference, before, allowed(question, difference.event, difference.subject))
    )
    return min(found, key=lambda difference: (difference.event, difference.question), default=None)


def _is_small(difference: Difference, before: Recording, allowed: float) -> bool:
    """Whether a gradient or a state is apart by no more than the noise in what is of the usual size, as in the matrix.

    The matrix takes differences of weights below :data:`SMALL` relative to that; of gradients and states it has none.
    """
    if difference.question not in (*_OF_OPTIMIZER, Question.WEIGHTS) or not math.isfinite(difference.relative):
        return False
    step = before.steps[difference.event]
    sizes = {key: _greatest(value) for key, value in _values(step, difference)}
    usual = SMALL if difference.question is Question.WEIGHTS else SMALL * max(sizes.values())
    return difference.relative * sizes[difference.name] <= allowed * usual


def _values(step: Step, difference: Difference) -> Iterator[tuple[str, Any]]:
    if difference.question is Question.STATE:
        yield from ((key, states[difference.what]) for key, states in step.state.items() if difference.what in states)
    elif difference.question is Question.WEIGHTS:
        yield from step.weights.items()
    else:
        unclipped = difference.question is Question.GRADIENTS and step.unclipped
        yield from (step.unclipped if unclipped else step.grads).items()


def _greatest(value: Any) -> float:
    """The greatest magnitude in a recorded tensor; of one element its own."""
    if isinstance(value, tuple):
        return max((copy.greatest for copy in value if copy is not None), default=0.0)
    return abs(value) if isinstance(value, float) else 0.0
