"""Units of small models, and what a step of each really gathers and reduces; they run on the workers of the pool."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import fsdp_compat
from fsdp_migrate.verify.recorder.arm import recorded
from fsdp_migrate.verify.recorder.orders import Orders
from tests.verify.loops import Unscaled, adamw, loss_of
from tests.verify.variants import CPU, Block

STEPS = 2
BF16 = torch.bfloat16


def _fsdp1(strategy: str, **options: Any) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: nn.Module) -> nn.Module:
        mesh = init_device_mesh("cpu", (2, 2)) if strategy.startswith("HYBRID") else None
        policy = ModuleWrapPolicy({Block})
        wanted = ShardingStrategy[strategy]
        return FSDP(
            model, auto_wrap_policy=policy, sharding_strategy=wanted, device_id=CPU, device_mesh=mesh, **options
        )

    return wrap


def _fsdp2(*shape: int, **options: Any) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: nn.Module) -> nn.Module:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        for module in list(model.modules()):
            if isinstance(module, Block):
                fully_shard(module, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **options)

    return wrap


def _frozen(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[nn.Module], nn.Module]:
    def freeze(model: Any) -> nn.Module:
        model.blocks[0].requires_grad_(False)
        return wrap(model)

    return freeze


TWO = {
    "FSDP1": _fsdp1("FULL_SHARD"),
    "FSDP1 kept": _fsdp1("SHARD_GRAD_OP"),
    "FSDP1 whole": _fsdp1("NO_SHARD"),
    "FSDP1 bf16": _fsdp1("FULL_SHARD", mixed_precision=MixedPrecision(BF16, torch.float32)),
    "FSDP2": _fsdp2(2),
    "FSDP2 kept": _fsdp2(2, reshard_after_forward=False),
    "FSDP2 bf16": _fsdp2(2, mp_policy=MixedPrecisionPolicy(BF16, torch.float32)),
    "FSDP2 frozen": _frozen(_fsdp2(2)),
}
FOUR = {"FSDP1 hybrid": _fsdp1("HYBRID_SHARD"), "FSDP2 hybrid": _fsdp2(2, 2)}


def run(rank: int, world_size: int, directory: str) -> dict[str, dict[str, Any]]:
    """The preflight of each, after steps that are recorded."""
    torch.set_num_threads(1)
    found = {}
    for name, wrap in (TWO if world_size == 2 else FOUR).items():
        torch.manual_seed(0)
        model = wrap(Unscaled())
        optimizer = adamw(model)
        with recorded(Orders(str(Path(directory, name)), STEPS, stop=False)):
            for step in range(STEPS):
                loss_of(model, step, rank).backward()
                optimizer.step()
                optimizer.zero_grad()
        found[name] = fsdp_compat.preflight(model).as_dict()
    return found
