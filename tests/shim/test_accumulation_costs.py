"""Accumulation under ``no_sync``: what FSDP1 leaves gathered between micro-batches is not gathered again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import fully_shard

import fsdp_compat
from fsdp_compat import ShardingStrategy
from fsdp_compat.torch_.param_groups import param_groups
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.collectives import Collectives
from tests.shim.models import Block, Model, build, loss_of
from tests.shim.training import POLICIES, quiet_fsdp1

Step = Callable[[Any, int, int], None]


def backwards(model: Any, rank: int, step: int) -> None:
    for micro in range(4):
        with model.no_sync() if micro < 3 else contextlib.nullcontext():
            loss_of(model, rank, 10 * step + micro).backward()


def one_block(model: Any, rank: int, step: int) -> None:
    """All silent micro-batches in one block, and the forward of the last one in it too."""
    with model.no_sync():
        for micro in range(3):
            loss_of(model, rank, 10 * step + micro).backward()
        last = loss_of(model, rank, 10 * step + 4)
    last.backward()


def with_evaluation(model: Any, rank: int, step: int) -> None:
    with model.no_sync():
        loss_of(model, rank, 10 * step).backward()
        with torch.no_grad():
            loss_of(model, rank, 90)
    loss_of(model, rank, 10 * step + 1).backward()


def synchronised(model: Any, rank: int, step: int) -> None:
    for micro in range(2):
        loss_of(model, rank, 10 * step + micro).backward()


STEPS: dict[str, Step] = {step.__name__: step for step in (backwards, one_block, with_evaluation, synchronised)}


def issued(rank: int, world_size: int, face: str, strategy: str, policy: str, program: str) -> list[dict[str, int]]:
    """Worker: the collectives of each step."""
    arguments: dict[str, Any] = {}
    if "HYBRID" in strategy:
        arguments["device_mesh"] = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("replicate", "shard"))
    counts = []
    with quiet_fsdp1():
        model = {"fsdp1": FSDP1, "shim": fsdp_compat.FSDP}[face](
            build(),
            auto_wrap_policy=POLICIES[policy](),
            sharding_strategy=ShardingStrategy[strategy],
            device_id=DEVICE,
            use_orig_params=True,
            **arguments,
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            with Collectives() as seen:
                STEPS[program](model, rank, step)
                optimizer.step()
                optimizer.zero_grad()
            counts.append(dict(seen.counts))
    return counts


@pytest.mark.parametrize("program", STEPS)
@pytest.mark.parametrize(
    ("strategy", "world_size"),
    [("FULL_SHARD", 2), ("SHARD_GRAD_OP", 2), ("NO_SHARD", 2), ("HYBRID_SHARD", 4), ("_HYBRID_SHARD_ZERO2", 4)],
)
def test_each_step_issues_what_fsdp1_issues(pool: Pool, strategy: str, world_size: int, program: str) -> None:
    theirs, ours = (pool.run(issued, world_size, face, strategy, "transformer", program) for face in ("fsdp1", "shim"))
    assert ours == theirs


def test_and_without_a_policy(pool: Pool) -> None:
    theirs, ours = (pool.run(issued, 2, face, "SHARD_GRAD_OP", "none", "backwards") for face in ("fsdp1", "shim"))
    assert ours == theirs
    assert ours[0] == [{"gathers": 1, "scatters": 1}] * 3


def natively_sharded(reshard: bool) -> Model:
    model = build()
    keywords: dict[str, Any] = {} if reshard else {"reshard_after_forward": False}
    for block in model.blocks:
        fully_shard(block, **keywords)
    fully_shard(model, **keywords)
    return model


def helper_alone(rank: int, world_size: int) -> list[dict[str, int]]:
    """Worker: the helper on what was sharded without the shim."""
    counts = []
    for reshard in (False, True):
        model = natively_sharded(reshard)
        with Collectives() as seen:
            for micro in range(3):
                with fsdp_compat.no_sync(model) if micro < 2 else contextlib.nullcontext():
                    loss_of(model, rank, micro).backward()
        counts.append(dict(seen.counts))
        assert not any(
            group.is_unsharded for unit in model.modules() if isinstance(unit, Block) for group in param_groups(unit)
        )
    return counts


def test_the_helper_heeds_what_fully_shard_was_called_with(pool: Pool) -> None:
    # A root without a word on it frees in each backward, as FULL_SHARD's does.
    expected = [{"gathers": 4, "scatters": 4}, {"gathers": 21, "scatters": 4}]
    assert pool.run(helper_alone, 2)[0] == expected
