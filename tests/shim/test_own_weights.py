"""Ranks that build other weights, with nothing that evens them: FSDP1 keeps each rank's part of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

import fsdp_compat
from tests.pool import Pool
from tests.shim.models import build
from tests.shim.training import Case, Outcome, assert_same, train_compat, train_fsdp1, weights_of


def both(rank: int, world_size: int, case: Case) -> tuple[Outcome, Outcome]:
    return train_fsdp1(rank, case), train_compat(rank, case)


@pytest.mark.parametrize("use_orig_params", [True, False])
@pytest.mark.parametrize("policy", ["none", "transformer", "custom"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_trains_what_fsdp1_puts_together(pool: Pool, ranks: int, policy: str, use_orig_params: bool) -> None:
    # Three ranks add gradients up in another order.
    case = Case(policy=policy, use_orig_params=use_orig_params, own_seeds=True, steps=3 if ranks == 2 else 0)
    for theirs, ours in pool.run(both, ranks, case):
        assert_same(theirs, ours)


HALF = {"mixed_precision": fsdp_compat.MixedPrecision(param_dtype=torch.bfloat16)}


@pytest.mark.parametrize(
    "case",
    [
        Case(own_seeds=True, tied=True),
        Case(own_seeds=True, meta=True),
        Case(own_seeds=True, steps=0, arguments=HALF),
        Case(own_seeds=True, strategy="NO_SHARD"),
        Case(own_seeds=True, double=True),
    ],
    ids=["tied", "meta", "half", "replicated", "double"],
)
def test_with(pool: Pool, case: Case) -> None:
    for theirs, ours in pool.run(both, 2, case):
        assert_same(theirs, ours)


def hybrid(rank: int, world_size: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    case = Case(strategy="HYBRID_SHARD", own_seeds=True, steps=0, arguments=_mesh())
    theirs, ours = train_fsdp1(rank, case).weights, train_compat(rank, case).weights
    # ``weights_of`` reads the ranks of the first row.
    return (theirs if rank < 2 else {}), (ours if rank < 2 else {})


def _mesh() -> dict[str, Any]:
    return {"device_mesh": dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))}


def test_hybrid_ranks_keep_parts_within_their_group(pool: Pool) -> None:
    for theirs, ours in pool.run(hybrid, 4):
        assert theirs.keys() == ours.keys() and all(weight.equal(ours[name]) for name, weight in theirs.items())


def equal_ranks(rank: int, world_size: int) -> tuple[list[str], bool]:
    calls = []
    gather = dist.all_gather

    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls.append("gather")
        return gather(*arguments, **keywords)

    before = build()
    expected = {name: param.detach().clone() for name, param in before.named_parameters()}
    dist.all_gather = counted
    try:
        sharded = fsdp_compat.shard(before, device_id=torch.device("cpu"))
    finally:
        dist.all_gather = gather
    return calls, all(param.equal(expected[name]) for name, param in weights_of(sharded).items())


def test_equal_ranks_gather_nothing(pool: Pool) -> None:
    assert pool.run(equal_ranks, 2) == [([], True)] * 2
