"""ShardedGradScaler: every rank skips what one rank found too large, and the scale goes as under FSDP1."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler as TorchScaler

import fsdp_compat
from tests.device import DEVICE, ranks
from tests.pool import Pool
from tests.shim.models import build, loss_of
from tests.shim.training import POLICIES, clean, quiet_fsdp1, weights_here, weights_of

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "Adam foreach": lambda params: torch.optim.Adam(params, lr=0.01, foreach=True),
    "Adam fused": lambda params: torch.optim.Adam(params, lr=0.01, fused=True),
}
# On which rank, in which step and in which parameter an infinity turns up. The head is not sharded.
ACCIDENTS = {1: (1, "blocks.1.down.weight"), 3: (0, "head.weight")}


def scaled(rank: int, world_size: int, implementation: str, optimizer_name: str) -> dict[str, Any]:
    """Worker: train with accidents; what happened to the scale, which steps were skipped, and where it ended."""
    model = build()
    keywords = {"auto_wrap_policy": POLICIES["transformer"](), "device_id": DEVICE, "ignored_modules": [model.head]}
    with quiet_fsdp1():
        wrapped: Any = {"fsdp1": FSDP1, "fsdp_compat": fsdp_compat.FSDP}[implementation](
            model, use_orig_params=True, **keywords
        )
    settings: dict[str, Any] = {"init_scale": 1024.0, "growth_interval": 2, "device": DEVICE.type}
    scaler = {"fsdp1": TorchScaler, "fsdp_compat": fsdp_compat.ShardedGradScaler}[implementation](**settings)
    optimizer = OPTIMIZERS[optimizer_name](wrapped.parameters())
    scales, skipped = [], []
    for step in range(6):
        optimizer.zero_grad()
        scaler.scale(loss_of(wrapped, rank, step)).backward()
        for name, param in wrapped.named_parameters():
            if ACCIDENTS.get(step) == (rank, clean(name)):
                param.grad.mul_(math.inf)
        before = model.embed.weight.detach().clone()
        scaler.step(optimizer)
        after = model.embed.weight.detach()
        scaler.update()
        scales.append(scaler.get_scale())
        skipped.append(bool((before == after).all()))
    if implementation == "fsdp1":
        with FSDP1.summon_full_params(wrapped):
            weights = weights_here(wrapped)
    else:
        weights = weights_of(wrapped)
    return {"scales": scales, "skipped": skipped, "weights": weights, "state": scaler.state_dict()}


@pytest.mark.parametrize("optimizer", ["SGD", "Adam foreach"])
def test_all_ranks_skip_together_as_under_fsdp1(pool: Pool, optimizer: str) -> None:
    theirs, ours = (pool.run(scaled, 2, side, optimizer) for side in ("fsdp1", "fsdp_compat"))
    for first, second in zip(theirs, ours, strict=True):
        assert second["skipped"] == [False, True, False, True, False, False]
        assert second["scales"] == first["scales"] == [1024.0, 512.0, 512.0, 256.0, 256.0, 512.0]
        assert second["skipped"] == first["skipped"]
        assert second["state"] == first["state"]
        for name, weight in first["weights"].items():
            assert torch.equal(weight, second["weights"][name]), name


def test_fused_optimizers_skip_together(pool: Pool) -> None:
    for outcome in pool.run(scaled, 2, "fsdp_compat", "Adam fused"):
        assert outcome["skipped"] == [False, True, False, True, False, False]
        assert outcome["scales"] == [1024.0, 512.0, 512.0, 256.0, 256.0, 512.0]


def details(rank: int, world_size: int) -> None:
    """Worker: a group of its own, dtypes of what is scaled, unscaling by hand, and a scaler that is off."""
    alone = [dist.new_group([member]) for member in range(world_size)][rank]
    param = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([param], lr=1.0)
    scaler = fsdp_compat.ShardedGradScaler(DEVICE.type, init_scale=4.0, process_group=alone)
    assert scaler.scale(torch.ones((), dtype=torch.float16)).dtype == torch.float16
    first, (second, third) = scaler.scale([torch.ones(1), (torch.ones(1), torch.ones((), dtype=torch.bfloat16))])
    assert (first.item(), second.item(), third.item(), third.dtype) == (4.0, 4.0, 4.0, torch.bfloat16)
    param.grad = torch.full((2,), math.inf if rank == 1 else 8.0)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == ([1.0, 1.0] if rank == 1 else [-1.0, -1.0])
    assert scaler.get_scale() == (2.0 if rank == 1 else 4.0)
    low = nn.Parameter(torch.ones(2, dtype=torch.float16))
    low.grad = torch.full((2,), 8.0, dtype=torch.float16)
    scaler.unscale_(torch.optim.SGD([low], lr=1.0))
    assert low.grad.tolist() == [4.0, 4.0] if rank == 1 else [2.0, 2.0]
    off = fsdp_compat.ShardedGradScaler(DEVICE.type, enabled=False)
    loss = torch.ones(())
    assert off.scale(loss).item() == 1.0
    param.grad = torch.ones(2)
    off.step(optimizer)
    off.update()
    off.unscale_(optimizer)


def test_details(pool: Pool) -> None:
    pool.run(details, ranks(2))
