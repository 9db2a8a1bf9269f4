"""Offload, ignored parameters, integer reshard and tensor parallelism are recorded as what they are parts of."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.read import read
from tests.pool import Pool
from tests.verify import meshes, variants

#: Column-wise products add up in another order.
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def recordings(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("meshes")
    pool.run(meshes.two, 2, str(directory))
    pool.run(meshes.four, 4, str(directory))
    return directory


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("FSDP1 ignored", "FSDP2 ignored"),
        ("FSDP2", "FSDP2 resharded to two"),
    ],
)
def test_both_are_equal_bit_for_bit(recordings: Path, before: str, after: str) -> None:
    verdict = verdict_of(read(recordings / before), read(recordings / after))
    assert verdict.first is None
    assert verdict.comparison.tally.compared[Question.WEIGHTS] == (1 + 2 * 4) * variants.STEPS


def test_offload_is_a_difference_of_the_units_alone(recordings: Path) -> None:
    verdict = verdict_of(read(recordings / "FSDP1 on two"), read(recordings / "FSDP2 offload"))
    assert {difference.question for difference in verdict.firsts} == {Question.UNITS}
    assert verdict.cause is not None
    assert verdict.cause.message == "offload of unit (root) is False before and True after"


def test_parts_of_tensor_parallelism_are_parts_of_the_same_whole(recordings: Path) -> None:
    verdict = verdict_of(read(recordings / "FSDP2 even"), read(recordings / "FSDP2 and TP"))
    tally = verdict.comparison.tally
    assert tally.of(Question.INITIAL_WEIGHTS) == []
    assert tally.compared[Question.GRADIENTS] == tally.compared[Question.WEIGHTS] == (1 + 2 * 4) * variants.STEPS
    first_step = [difference for difference in tally.of(Question.GRADIENTS) if difference.step == 0]
    assert max((difference.relative for difference in first_step), default=0.0) < ROUNDING
