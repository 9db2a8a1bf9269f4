"""States of optimizers that stay in memory after they were loaded: FSDP1 goes on in the tensors that it has of them."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.tensor import DTensor

import fsdp_compat
from fsdp_compat import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from tests.device import DEVICE, ranks
from tests.pool import Pool
from tests.shim.models import build, loss_of
from tests.shim.training import POLICIES, Outcome, assert_same, quiet_fsdp1


def rolled_back(make: Any, face: Any, rank: int, is_sent: bool, is_full: bool) -> Outcome:
    """A snapshot is loaded twice, with steps before and in between; its counters are among the losses."""
    model = make(build())
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
    losses: list[float] = []

    def train(begin: int) -> None:
        for step in range(begin, begin + 3):
            loss = loss_of(model, rank, step)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())

    train(0)
    # On the CPU FSDP1 gathers all tensors of a parameter into one memory, and copies it where it offloads nothing.
    optim_config = FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=is_sent)
    configs: tuple[Any, ...] = StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=is_sent), optim_config
    if not is_full:
        configs = StateDictType.SHARDED_STATE_DICT, ShardedStateDictConfig(), ShardedOptimStateDictConfig(False)
    with face.state_dict_type(model, *configs):
        saved = face.optim_state_dict(model, optimizer)
        train(9)
        for begin in (3, 6):
            optimizer.load_state_dict(face.optim_state_dict_to_load(model, optimizer, saved))
            train(begin)
            counters = [(name, key, one) for name, each in saved.get("state", {}).items() for key, one in each.items()]
            losses += [one.item() for *_, one in sorted(counters, key=lambda entry: entry[:2]) if one.dim() == 0]
        found = {name: one["exp_avg"] for name, one in face.optim_state_dict(model, optimizer).get("state", {}).items()}
    weights = {name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in found.items()}
    return Outcome(losses, [], weights)


def run(
    rank: int,
    world_size: int,
    strategy: str,
    use_orig_params: bool,
    policy: str,
    is_sent: bool,
    is_full: bool = True,
) -> tuple[Outcome, Outcome]:
    """Worker: what becomes of FSDP1's model and of the shim's."""
    outcomes = []
    for face in (FSDP1, fsdp_compat.FSDP):
        make = functools.partial(
            face,
            sharding_strategy=ShardingStrategy[strategy],
            auto_wrap_policy=POLICIES[policy](),
            device_id=DEVICE,
            use_orig_params=use_orig_params,
        )
        with quiet_fsdp1():
            outcomes.append(rolled_back(make, face, rank, is_sent, is_full))
    return outcomes[0], outcomes[1]


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("policy", ["none", "transformer"])
@pytest.mark.parametrize("use_orig_params", [False, True])
@pytest.mark.parametrize(("strategy", "world_size"), [("FULL_SHARD", 2), ("NO_SHARD", 2), ("FULL_SHARD", 1)])
def test_goes_on_in_what_was_loaded_as_fsdp1(
    pool: Pool, strategy: str, world_size: int, use_orig_params: bool, policy: str, is_sent: bool
) -> None:
    for theirs, ours in pool.run(run, ranks(world_size), strategy, use_orig_params, policy, is_sent):
        assert_same(theirs, ours)


def test_what_is_not_sharded_is_shared_in_sharded_states_too(pool: Pool) -> None:
    for theirs, ours in pool.run(run, ranks(2), "NO_SHARD", True, "transformer", False, False):
        assert_same(theirs, ours)
