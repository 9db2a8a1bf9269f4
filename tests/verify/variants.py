"""One small training under every kind of sharding, each recorded; it runs on the workers of the pool."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel

import fsdp_compat
from fsdp_migrate.verify.recorder.arm import recorded
from fsdp_migrate.verify.recorder.orders import Orders

STEPS = 3
CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(self.norm(x)).tanh()


class Model(nn.Module):
    """Odd sizes, so that shards are uneven, and a weight under two names."""

    def __init__(self, width: int = 7) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def _fsdp1(strategy: str, use_orig_params: bool) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: nn.Module) -> nn.Module:
        return FSDP(
            model,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            sharding_strategy=ShardingStrategy[strategy],
            use_orig_params=use_orig_params,
            device_id=CPU,
            device_mesh=init_device_mesh("cpu", (2, 2)) if strategy.startswith(("HYBRID", "_HYBRID")) else None,
        )

    return wrap


def _fsdp2(shape: tuple[int, ...]) -> Callable[[nn.Module], nn.Module]:
    def wrap(model: nn.Module) -> nn.Module:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        for module in reversed(list(model.modules())):
            if isinstance(module, Block):
                fully_shard(module, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    return wrap


def _shim(model: nn.Module) -> nn.Module:
    return fsdp_compat.FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=CPU)


STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD")
HYBRIDS = ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2")
TWO: dict[str, Callable[[nn.Module], nn.Module]] = {
    **{f"FSDP1 {name} {orig}": _fsdp1(name, orig) for name in STRATEGIES for orig in (True, False)},
    "FSDP2": _fsdp2((2,)),
    "FSDP2 as NO_SHARD": _fsdp2((2, 1)),
    "fsdp_compat": _shim,
    "DDP": DistributedDataParallel,
}
FOUR: dict[str, Callable[[nn.Module], nn.Module]] = {
    **{f"FSDP1 {name} {orig}": _fsdp1(name, orig) for name in HYBRIDS for orig in (True, False)},
    "FSDP2 HSDP": _fsdp2((2, 2)),
}


def train(model: nn.Module, rank: int, clips: bool = True) -> list[float]:
    """A few steps; the losses of this rank. ``clips`` False: parameters lie on several meshes, and torch refuses."""
    # As with flat parameters, which have one group.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        tokens = torch.randint(11, (4, 5), generator=torch.Generator().manual_seed(10 * step + rank))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        if not clips:
            pass
        elif isinstance(model, FSDP):
            model.clip_grad_norm_(1e6)
        else:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def run(rank: int, world_size: int, directory: str, recording: bool = True) -> dict[str, list[float]]:
    """Train every variant for so many ranks; the losses by its name."""
    torch.set_num_threads(1)
    found = {}
    for name, wrap in (TWO if world_size == 2 else FOUR).items():
        torch.manual_seed(0)
        model = wrap(Model())
        with _recorded(directory, name) if recording else contextlib.nullcontext():
            found[name] = train(model, rank)
        dist.barrier()
    return found


@contextlib.contextmanager
def _recorded(directory: str, name: str) -> Iterator[None]:
    with recorded(Orders(str(Path(directory, name)), STEPS, stop=False, deep=1)):
        yield


def alone(directory: str) -> None:
    """The model without any sharding, in one process."""
    torch.manual_seed(0)
    with _recorded(directory, "alone"):
        train(Model(), 0)
