"""The decoder whose layers share an input, in bfloat16 and clipped, recorded on the workers of the pool."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.verify.recorder.arm import recorded
from fsdp_migrate.verify.recorder.orders import Orders
from tests.verify.shared import Decoder, Layer
from tests.verify.trainings import numbers

STEPS = 4
LOW = torch.bfloat16


def sharded(model: nn.Module, side: str, world_size: int) -> nn.Module:
    """As ``side`` says: before, after, or before without shards."""
    if side != "after":
        strategy = ShardingStrategy.NO_SHARD if side == "whole" else ShardingStrategy.FULL_SHARD
        policy = ModuleWrapPolicy({Layer})
        low, cpu = MixedPrecision(LOW, LOW), torch.device("cpu")
        return FSDP(
            model, auto_wrap_policy=policy, mixed_precision=low, device_id=cpu, sharding_strategy=strategy,
            use_orig_params=True,
        )  # fmt: skip
    mesh = init_device_mesh("cpu", (world_size,))
    for module in (*model.layers, model):  # type: ignore[misc]
        fully_shard(module, mesh=mesh, mp_policy=MixedPrecisionPolicy(LOW, LOW))
    return model


def run(rank: int, world_size: int, out: str, side: str, limit: float, late: float, orders: dict[str, Any]) -> None:
    """``late``: what gradients of layers are scaled by from the second step on."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = sharded(Decoder(Layer), side, world_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with recorded(Orders(out, STEPS, stop=False, deep=1, **orders)):
        for step in range(STEPS):
            model(numbers(step, rank)).float().square().mean().backward()
            for name, parameter in model.named_parameters():
                if step and "layers" in name and parameter.grad is not None:
                    parameter.grad.mul_(late)
            if limit and isinstance(model, FSDP):
                model.clip_grad_norm_(limit)
            elif limit:
                torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
            optimizer.step()
            optimizer.zero_grad()
