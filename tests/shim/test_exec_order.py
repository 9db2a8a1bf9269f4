"""Units that only some ranks run: found out where torch's debug level asks for it, at no cost where it does not."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.training import quiet_fsdp1


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x)  # type: ignore[no-any-return]


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([Expert(), Expert()])

    def forward(self, x: torch.Tensor, chosen: int) -> torch.Tensor:
        return self.experts[chosen](x)  # type: ignore[no-any-return]


def routed(rank: int, world_size: int, implementation: str, by_hand: bool, chosen: list[list[int]]) -> list[str]:
    """Worker: ``chosen[step][rank]`` runs; the messages of what was raised, else of what was warned of."""
    names: Any = FSDP1 if implementation == "fsdp1" else fsdp_compat.FSDP
    messages: list[str] = []
    before = dist.get_debug_level()
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    try:
        with quiet_fsdp1():
            model: Any = Router()
            if by_hand:
                for index in range(2):
                    model.experts[index] = names(model.experts[index], device_id=DEVICE)
                model = names(model, device_id=DEVICE)
            else:
                policy = fsdp_compat.ModuleWrapPolicy({Expert})
                model = names(model, auto_wrap_policy=policy, device_id=DEVICE)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in chosen:
                model(torch.ones(1, 3).to(DEVICE), step[rank]).sum().backward()
        messages += [str(warning.message) for warning in caught if "Forward order" in str(warning.message)]
    except RuntimeError as error:
        messages.append(str(error))
    finally:
        dist.set_debug_level(before)
    return messages


@pytest.mark.parametrize("by_hand", [False, True], ids=["by_policy", "by_hand"])
@pytest.mark.parametrize("implementation", ["fsdp1", "fsdp_compat"])
def test_ranks_that_run_different_units_are_told(pool: Pool, implementation: str, by_hand: bool) -> None:
    for (message,) in pool.run(routed, 2, implementation, by_hand, [[0, 1]]):
        assert message.startswith("Forward order differs across ranks: rank 0 is all-gathering parameters for")
        if implementation == "fsdp_compat":
            assert "parameters for experts.0 while rank 1 is all-gathering parameters for experts.1." in message


@pytest.mark.parametrize("implementation", ["fsdp1", "fsdp_compat"])
def test_another_order_than_the_first_is_said_once(pool: Pool, implementation: str) -> None:
    found = pool.run(routed, 2, implementation, False, [[0, 0], [1, 1], [1, 1], [0, 0]])
    for rank, (message,) in enumerate(found):
        assert message.startswith(f"Forward order differs from that of the first iteration on rank {rank}.")
        if implementation == "fsdp_compat":
            assert message.endswith("experts.1 runs instead of experts.0.")


def hooks(rank: int, world_size: int) -> list[int]:
    """Worker: how many hooks the forward of a unit has, at the usual level and at that of details."""
    before = dist.get_debug_level()
    counts = []
    try:
        for level in (dist.DebugLevel.OFF, dist.DebugLevel.DETAIL):
            dist.set_debug_level(level)
            policy = fsdp_compat.ModuleWrapPolicy({Expert})
            model = fsdp_compat.FSDP(Router(), auto_wrap_policy=policy, device_id=DEVICE)
            counts.append(len(model.experts[0]._forward_pre_hooks))
    finally:
        dist.set_debug_level(before)
    return counts


def test_nothing_is_watched_otherwise(pool: Pool) -> None:
    ((usual, detailed),) = pool.run(hooks, 1)
    assert detailed == usual + 1
