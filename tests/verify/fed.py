"""A model before its migration, and after it with defects in two modules; it runs on the workers of the pool."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from fsdp_migrate.verify.recorder.arm import recorded
from fsdp_migrate.verify.recorder.orders import Orders
from tests.verify.trainings import Net, fsdp1, fsdp2, tokens

DEFECTS = ("blocks.0.act", "blocks.1.norm")


def build(defects: bool, checkpointed: bool) -> Net:
    torch.manual_seed(0)
    model = Net(spare=1.0)
    if defects:
        model.blocks[0].act = nn.GELU()  # type: ignore[union-attr]
        model.blocks[1].norm.eps = 0.1  # type: ignore[union-attr, assignment]
    for block in model.blocks if checkpointed else ():
        block.linear = checkpoint_wrapper(block.linear)  # type: ignore[assignment]
    return model


def run(rank: int, world_size: int, directory: str, checkpointed: bool) -> None:
    """Record before, after, and after with what went into the modules before."""
    torch.set_num_threads(1)
    before, after, fed = (str(Path(directory, name)) for name in ("before", "after", "fed"))
    train(rank, fsdp1()(build(False, checkpointed)), Orders(before, 1, stop=False, deep=1, keeps=True))
    train(rank, fsdp2()(build(True, checkpointed)), Orders(after, 1, stop=False, deep=1))
    train(rank, fsdp2()(build(True, checkpointed)), Orders(fed, 1, stop=False, deep=1, feed=before))


def train(rank: int, model: nn.Module, orders: Orders) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with recorded(orders):
        for micro in range(2):
            model(tokens(micro, rank)).square().mean().backward()
        optimizer.step()
