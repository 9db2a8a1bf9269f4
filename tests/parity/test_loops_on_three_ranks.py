"""Loops that need no helper, on three processes, where no tensor of the fixtures divides evenly among the ranks."""

from __future__ import annotations

import pytest

from tests.pool import Pool
from tests.rules.test_fixtures import Failure, in_rank_order

FIXTURES = ("FSDP201-clip-grad-norm", "FSDP202-no-sync", "FSDP203-summon-full-params-native")


@pytest.mark.parametrize("fixture", FIXTURES)
def test_both_train_the_same(fixture: str, pool: Pool) -> None:
    for before, after in pool.run(in_rank_order, 3, [(fixture, "before"), (fixture, "after")]):
        assert not isinstance(before, Failure), before.text
        assert not isinstance(after, Failure), after.text
        assert before == after
