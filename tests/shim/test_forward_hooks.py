"""Hooks around the forward of a wrapped model see and change what they do under FSDP1's wrapper."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

from fsdp_compat import FSDP, MixedPrecision
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.training import quiet_fsdp1


def seen(face: Any, precision: MixedPrecision | None) -> list[Any]:
    """What hooks from before and after the wrap are called with, in their order, and the losses and gradients' sums."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    notes: list[Any] = []

    def note(name: str, shift: float) -> Any:
        def hook(module: nn.Module, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
            notes.append((name, inputs[0].dtype))
            return (inputs[0] * 1.001 + shift,)

        return hook

    model.register_forward_pre_hook(note("inner", 0.0123))
    model = face(model, device_id=DEVICE, use_orig_params=True, mixed_precision=precision)
    model.register_forward_pre_hook(note("first", 0.0321))
    removed = model.register_forward_pre_hook(note("removed", 1.0))
    model.register_forward_pre_hook(note("last", 0.0213))
    model.register_forward_pre_hook(note("in front", 0.0132), prepend=True)
    model.register_forward_pre_hook(
        lambda module, inputs, given: notes.append(("with names", sorted(given))), with_kwargs=True
    )
    removed.remove()
    for step in range(2):
        loss = model(torch.arange(8.0).reshape(2, 4).to(DEVICE) / (step + 3)).float().pow(2).sum()
        loss.backward()
        notes.append(loss.item())
    return notes


def both(rank: int, world_size: int, precision: MixedPrecision | None) -> None:
    with quiet_fsdp1():
        expected = seen(FSDP1, precision)
    assert seen(FSDP, precision) == expected


@pytest.mark.parametrize("precision", [None, MixedPrecision(torch.bfloat16, torch.float32)], ids=["fp32", "bf16"])
def test_hooks_before_the_forward(pool: Pool, precision: MixedPrecision | None) -> None:
    pool.run(both, 2, precision)
