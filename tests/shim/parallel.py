"""Models for FSDP around tensor parallelism, and one way to train them under FSDP1, the shim and nothing at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from fsdp_compat.torch_.versions import HAS_UNEVEN_STRIDES
from tests.device import DEVICE

VOCABULARY, WIDTH = 12, 6
# A number that four ranks do not divide, where torch can shard by it.
HIDDEN = 10 if HAS_UNEVEN_STRIDES else 12


class Mlp(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, hidden)
        self.down = nn.Linear(hidden, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Mlps(nn.Module):
    """An embedding, two blocks, norm and head; tensor parallelism leaves 5 of 10 hidden units to each of two ranks."""

    def __init__(self, hidden: int = HIDDEN, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Mlp(hidden) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        x = self.embed(batch)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Only the blocks' linears: norms, embedding and head stay plain tensors."""
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def sequence_parallel(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Everything, with the activations between the blocks cut along the sequence: no plain parameter is left."""
    parallelize_module(
        model,
        mesh,
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for block in model.blocks:
        plan = {
            "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(output_layouts=Shard(1)),
        }
        parallelize_module(block, mesh, plan)
    return model


STYLES: dict[str, Callable[[nn.Module, DeviceMesh], nn.Module]] = {
    "tensor": tensor_parallel,
    "sequence": sequence_parallel,
}


def batch_of(data_rank: int, step: int) -> torch.Tensor:
    """What every rank of one data-parallel position sees in one step."""
    generator = torch.Generator().manual_seed(1000 * data_rank + step)
    return torch.randint(VOCABULARY, (3, 8), generator=generator).to(DEVICE)


def loss_of(model: nn.Module, data_rank: int, step: int) -> torch.Tensor:
    batch = batch_of(data_rank, step)
    return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.roll(1, dims=1).flatten())


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    # Plain and distributed parameters in one group is what torch's fused loops over lists refuse.
    return torch.optim.Adam(model.parameters(), lr=1e-2, foreach=False)


def train(
    model: nn.Module,
    data_rank: int,
    optimizer: torch.optim.Optimizer,
    steps: range = range(3),
    clip: Callable[[], torch.Tensor] | None = None,
) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of each step."""
    losses, norms = [], []
    for step in steps:
        optimizer.zero_grad()
        loss = loss_of(model, data_rank, step)
        loss.backward()
        if clip is not None:
            norms.append(clip().item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def train_unsharded(
    data_ranks: int, steps: int = 3, max_norm: float | None = None
) -> tuple[nn.Module, list[list[float]], list[float]]:
    """The same model on one process that sees the data of all: the model, losses by data rank, gradient norms."""
    model = Mlps().to(DEVICE)
    optimizer = optimizer_of(model)
    losses: list[list[float]] = [[] for _ in range(data_ranks)]
    norms = []
    for step in range(steps):
        optimizer.zero_grad()
        for data_rank in range(data_ranks):
            loss = loss_of(model, data_rank, step)
            (loss / data_ranks).backward()
            losses[data_rank].append(loss.item())
        if max_norm is not None:
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm).item())
        optimizer.step()
    return model, losses, norms


def full(tensors: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Whole copies of distributed and plain tensors. A collective."""
    return {
        name: (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone().cpu()
        for name, tensor in tensors.items()
    }
