"""Every kind of training loop is recorded whole, and FSDP1 and FSDP2 are equal under each."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.read import read
from tests.pool import Pool
from tests.verify import loops

PARAMETERS = 1 + 2 * 4
#: Optimizer steps that are recorded, of all optimizers.
STEPS = {"two_models": loops.STEPS + 2}


@pytest.mark.parametrize("name", [loop.__name__ for loop in loops.LOOPS])
def test_a_loop_is_recorded_whole_and_equal(pool: Pool, tmp_path: Path, name: str) -> None:
    pool.run(loops.run, 2, str(tmp_path), name)
    before, after = (read(tmp_path / shard.__name__) for shard in (loops.fsdp1, loops.fsdp2))
    verdict = verdict_of(before, after)
    assert [d for d in verdict.firsts if d.question is not Question.ENVIRONMENT] == []
    compared = verdict.comparison.tally.compared
    steps = STEPS.get(name, loops.STEPS)
    assert compared[Question.WEIGHTS] == compared[Question.GRADIENTS] == PARAMETERS * steps
    assert compared[Question.STATE] == 3 * PARAMETERS * steps
    assert compared[Question.LOSS] >= 2 * steps
    assert [step.step for step in before.steps if step.optimizer == 0] == list(range(loops.STEPS))
    for recording in (before, after):
        assert all(
            value is not None and not value.is_zero for step in recording.steps for (value, *_) in step.grads.values()
        )


@pytest.mark.parametrize("name", ["wrapper", "in place"])
def test_a_compiled_model_is_found(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    directory = tmp_path_factory.mktemp("alone")
    loops.alone(str(directory))
    verdict = verdict_of(read(directory / "eager"), read(directory / name))
    assert verdict.firsts == ()
    compared = verdict.comparison.tally.compared
    assert compared[Question.DATA] == loops.STEPS
    assert compared[Question.WEIGHTS] == PARAMETERS * loops.STEPS
