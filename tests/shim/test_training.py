"""fsdp_compat.shard against real FSDP1: the same losses and weights, bit for bit, with other data on every rank."""

from __future__ import annotations

import pytest

from tests.device import ranks
from tests.pool import Pool
from tests.shim.training import Case, assert_same, both

# With the sums that gloo or NCCL make; test_matrix.py has every pair of settings, with sums in the order of the ranks.
CASES = [
    Case(),
    Case(strategy="NO_SHARD", max_norm=1000.0),
    Case(strategy="NO_SHARD", accumulate=3),
    Case(strategy="SHARD_GRAD_OP", accumulate=3),
    Case(tied=True, policy="size", accumulate=2, silent=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_trains_as_fsdp1_on_two_ranks(pool: Pool, case: Case) -> None:
    for theirs, ours in pool.run(both, ranks(2), case):
        assert_same(theirs, ours)


# From three ranks on numbers are added in another order. In double precision that shows in the last digits only.
ROUNDING = 1e-12


@pytest.mark.parametrize("world_size", [1, 3, 4])
@pytest.mark.parametrize(
    "case", [Case(double=True), Case(policy="none", accumulate=2, silent=True, double=True)], ids=str
)
def test_trains_as_fsdp1_on_other_world_sizes(pool: Pool, world_size: int, case: Case) -> None:
    for theirs, ours in pool.run(both, world_size, case):
        assert_same(theirs, ours, ROUNDING)
