"""fsdp_compat.shard against real FSDP1: the same losses and weights, bit for bit, with other data on every rank."""

from __future__ import annotations

import pytest

from tests.pool import Pool
from tests.shim.training import POLICIES, Case, assert_same, both

CASES = [
    *(Case(policy=policy) for policy in POLICIES),
    *(Case(strategy=strategy) for strategy in ("SHARD_GRAD_OP", "NO_SHARD")),
    Case(accumulate=3),
    *(Case(strategy=strategy, accumulate=3, silent=True) for strategy in ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")),
    Case(tied=True),
    Case(tied=True, policy="size", accumulate=2, silent=True),
    Case(use_orig_params=False),
    Case(max_norm=1000.0),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_trains_as_fsdp1_on_two_ranks(pool: Pool, case: Case) -> None:
    for theirs, ours in pool.run(both, 2, case):
        assert_same(theirs, ours)


# From three ranks on, and where FSDP1's NO_SHARD reduces what it has reduced before, the same numbers are added in
# another order. In double precision that shows in the last digits only.
ROUNDING = 1e-12


def test_no_shard_accumulates_as_fsdp1(pool: Pool) -> None:
    for theirs, ours in pool.run(both, 2, Case(strategy="NO_SHARD", accumulate=3, double=True)):
        assert_same(theirs, ours, ROUNDING)


@pytest.mark.parametrize("world_size", [1, 3, 4])
@pytest.mark.parametrize(
    "case", [Case(double=True), Case(policy="none", accumulate=2, silent=True, double=True)], ids=str
)
def test_trains_as_fsdp1_on_other_world_sizes(pool: Pool, world_size: int, case: Case) -> None:
    for theirs, ours in pool.run(both, world_size, case):
        assert_same(theirs, ours, ROUNDING)
