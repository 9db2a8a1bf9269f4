"""Loops that need no helper, on three processes, where no tensor of the fixtures divides evenly among the ranks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.parity.ordered import sums_in_rank_order
from tests.pool import Pool
from tests.rules.test_fixtures import Failure, run_programs

FIXTURES = ("FSDP201-clip-grad-norm", "FSDP202-no-sync", "FSDP203-summon-full-params-native")


def in_rank_order(rank: int, world_size: int, programs: list[tuple[str, str]]) -> list[Any]:
    """Worker: what the programs return, with sums that do not depend on the layout of a buffer."""
    with sums_in_rank_order():
        return run_programs(rank, world_size, programs)


@pytest.mark.parametrize("fixture", FIXTURES)
def test_both_train_the_same(fixture: str, pool: Pool) -> None:
    for before, after in pool.run(in_rank_order, 3, [(fixture, "before"), (fixture, "after")]):
        assert not isinstance(before, Failure), before.text
        assert not isinstance(after, Failure), after.text
        assert before == after
