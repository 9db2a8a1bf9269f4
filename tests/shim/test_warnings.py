"""What FSDP1 warns of the shim warns of too, at the line that called it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from fsdp_compat import ShardingStrategy
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.models import build, loss_of

IMPLEMENTATIONS = ("fsdp1", "fsdp_compat")


def names_of(implementation: str) -> Any:
    return FSDP1 if implementation == "fsdp1" else fsdp_compat.FSDP


def everything_ignored(rank: int, world_size: int, implementation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Worker: the gradients of a model that was told to ignore itself, and of one that nothing was done to, flat."""
    with pytest.warns(UserWarning, match="Trying to ignore the top-level module passed into the FSDP") as caught:
        inner = build()
        model = names_of(implementation)(inner, device_id=DEVICE, ignored_modules=[inner])
    if implementation == "fsdp_compat":
        assert {warning.filename for warning in caught} == {__file__}
    loss_of(model, rank, 0).backward()
    assert all(type(param) is nn.Parameter for param in model.parameters())
    reference = build()
    loss_of(reference, rank, 0).backward()
    return flat_gradients(model), flat_gradients(reference)


def flat_gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([param.grad.flatten() for param in model.parameters() if param.grad is not None]).cpu()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_module_that_ignores_itself_stays_whole(pool: Pool, implementation: str) -> None:
    (first, first_expected), (second, second_expected) = pool.run(everything_ignored, 2, implementation)
    assert torch.equal(first, first_expected)
    assert torch.equal(second, second_expected)
    assert not torch.equal(first, second)


def alone(rank: int, world_size: int, implementation: str) -> list[list[str]]:
    """Worker: what a single rank is told, for each strategy."""
    told = []
    for strategy in (None, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            names_of(implementation)(nn.Linear(2, 2), device_id=DEVICE, sharding_strategy=strategy)
        told.append([str(warning.message) for warning in caught if "world size" in str(warning.message)])
    return told


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_single_rank_is_told_that_nothing_is_sharded(pool: Pool, implementation: str) -> None:
    (full, grad_op, none) = pool.run(alone, 1, implementation)[0]
    prefix = "FSDP is switching to use `NO_SHARD` instead of ShardingStrategy."
    assert [message.startswith(f"{prefix}FULL_SHARD since the world size is 1.") for message in full] == [True]
    assert [message.startswith(f"{prefix}SHARD_GRAD_OP since the world size is 1.") for message in grad_op] == [True]
    assert none == []
