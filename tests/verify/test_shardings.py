"""Recordings of one training are the same whatever the sharding, and recording changes no number."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from tests.pool import Pool
from tests.verify import variants

#: Between strategies and APIs these differ by their meaning; the numbers must not.
MEANT = {Question.ENVIRONMENT, Question.UNITS}


@pytest.fixture(scope="module")
def two(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[float]]]:
    directory = tmp_path_factory.mktemp("two")
    return directory, pool.run(variants.run, 2, str(directory))[0]


@pytest.mark.parametrize("name", [name for name in variants.TWO if name != "FSDP2"])
def test_every_sharding_gives_the_same_values(two: tuple[Path, dict[str, list[float]]], name: str) -> None:
    verdict = verdict_of(read(two[0] / name), read(two[0] / "FSDP2"))
    differing = {difference.question: difference for difference in verdict.firsts if difference.question not in MEANT}
    assert differing == {}
    compared = verdict.comparison.tally.compared
    parameters = 1 + 2 * 4
    assert compared[Question.WEIGHTS] == compared[Question.GRADIENTS] == parameters * variants.STEPS
    assert compared[Question.STATE] == 3 * parameters * variants.STEPS
    assert compared[Question.FORWARD] > 0
    assert compared[Question.LOCAL_GRADIENTS] > 0


def test_recording_changes_no_loss(two: tuple[Path, dict[str, list[float]]], pool: Pool) -> None:
    assert pool.run(variants.run, 2, "", False)[0] == two[1]


def test_hybrid_replicas_are_compared_with_each_other(pool: Pool, tmp_path: Path) -> None:
    pool.run(variants.run, 4, str(tmp_path))
    recordings = {name: read(tmp_path / name) for name in variants.FOUR}
    for recording in recordings.values():
        assert {len(copies) for copies in recording.steps[-1].weights.values()} == {2}
        assert _same_in_all_replicas(recording)
    first = recordings["FSDP2 HSDP"]
    for recording in recordings.values():
        verdict = verdict_of(recording, first)
        assert verdict.comparison.tally.of(Question.INITIAL_WEIGHTS) == []
        assert verdict.comparison.tally.of(Question.LOCAL_GRADIENTS) == []


def _same_in_all_replicas(recording: Recording) -> bool:
    return all(len({value.digest for value in copies if value}) == 1 for copies in recording.steps[-1].weights.values())


def test_a_single_process_has_the_same_initial_weights(
    two: tuple[Path, dict[str, list[float]]], tmp_path: Path
) -> None:
    variants.alone(str(tmp_path))
    verdict = verdict_of(read(tmp_path / "alone"), read(two[0] / "FSDP2"))
    assert verdict.comparison.tally.of(Question.INITIAL_WEIGHTS) == []
    assert verdict.first is not None
    assert verdict.first.question is Question.GRADIENTS
