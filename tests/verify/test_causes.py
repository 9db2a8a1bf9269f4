"""Each named cause is told where it is, and is not told of what only looks like it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fsdp_migrate.verify.causes.causes import CAUSES
from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from tests.pool import Pool
from tests.verify import causes
from tests.verify.causes import EQUAL, PAIRS, Pair
from tests.verify.trainings import Training

Recorded = Callable[[Training], Recording]


@pytest.fixture(scope="module")
def recorded(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Each training is recorded once, when it is first asked for."""
    directory = tmp_path_factory.mktemp("causes")
    numbers = {id(training): number for number, training in enumerate(causes.trainings())}

    def of(training: Training) -> Recording:
        number = numbers[id(training)]
        out = directory / str(number)
        if not out.exists():
            pool.run(causes.run, 2, str(out), number)
        return read(out)

    return of


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.cause}-{'shown' if pair.shows else 'near'}")
def test_a_cause_is_told_where_it_is_and_nowhere_else(recorded: Recorded, pair: Pair) -> None:
    verdict = verdict_of(recorded(pair.before), recorded(pair.after))
    if verdict.first is None:
        assert pair.said == EQUAL
    else:
        named = verdict.cause.cause if verdict.cause is not None else None
        assert (named, verdict.first) == (pair.said, verdict.first)


@pytest.mark.parametrize("cause", [cause.name for cause in CAUSES])
def test_every_cause_has_a_training_that_shows_it_and_one_near_it(cause: str) -> None:
    assert {pair.shows for pair in PAIRS if pair.cause == cause} == {True, False}


def test_every_pair_is_of_a_cause() -> None:
    assert {pair.cause for pair in PAIRS} == {cause.name for cause in CAUSES}
