"""A ModuleList or ModuleDict as the whole model: it never runs, so each unit below it is the root of its forwards."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from fsdp_compat import FSDP, MixedPrecision, ModuleWrapPolicy, ShardingStrategy
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.models import Block
from tests.shim.training import Outcome, assert_same, quiet_fsdp1, weights_here, weights_of


def parts(kind: str) -> Any:
    torch.manual_seed(0)
    blocks = [Block(7, 11), Block(7, 11), Block(7, 5)]
    if kind == "dict":
        return nn.ModuleDict({f"part{index}": block for index, block in enumerate(blocks)}).to(DEVICE)
    return nn.ModuleList(blocks).to(DEVICE)


def train(rank: int, face: Any, kind: str, arguments: dict[str, Any]) -> Outcome:
    model = parts(kind)
    arguments = {**arguments, "device_id": DEVICE, "use_orig_params": True}
    if kind == "by hand":
        for index, block in enumerate(model):
            model[index] = face(block, **arguments)
    else:
        arguments["auto_wrap_policy"] = ModuleWrapPolicy({Block})
    model = face(model, **arguments)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(3):
        generator = torch.Generator().manual_seed(1000 * rank + step)
        x = torch.randn(4, 7, generator=generator).to(DEVICE)
        inner = model.module if face is FSDP1 else model
        for part in inner.values() if kind == "dict" else inner:
            x = part(x)
        loss = x.float().square().mean()
        loss.backward()
        optimizer.step()
        model.zero_grad()
        losses.append(loss.item())
    if face is FSDP1:
        with contextlib.ExitStack() as stack:
            # FSDP1 refuses to summon the whole, since each unit has run as a root.
            for part in model.module.children():
                stack.enter_context(FSDP1.summon_full_params(part))
            return Outcome(losses, [], weights_here(model))
    assert isinstance(model, FSDP)
    state = model.state_dict()
    assert all(torch.equal(value.cpu(), state[name].cpu()) for name, value in weights_of(model).items())
    return Outcome(losses, [], weights_of(model))


def both(rank: int, world_size: int, kind: str, arguments: dict[str, Any]) -> tuple[Outcome, Outcome]:
    """Worker: what FSDP1 and the shim make of it."""
    with quiet_fsdp1():
        return train(rank, FSDP1, kind, arguments), train(rank, fsdp_compat.FSDP, kind, arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP},
        {"mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["list", "dict", "by hand"])
def test_a_container_of_units_trains_as_fsdp1(pool: Pool, kind: str, arguments: dict[str, Any]) -> None:
    for theirs, ours in pool.run(both, 2, kind, arguments):
        assert_same(theirs, ours)
