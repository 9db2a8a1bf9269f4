"""Gradients changed in place between backward and step, trained on two ranks under FSDP1, FSDP2 and the shim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from fsdp_compat import FSDP
from tests.parity.cpu import fsdp1_on_cpu
from tests.pool import Pool


def _scaled_in_place(p: Any) -> None:
    p.grad.data *= 2


CHANGES: dict[str, Callable[[Any], object]] = {
    "p.grad.data.mul_(2)": lambda p: p.grad.data.mul_(2),
    "p.grad.detach().mul_(0.5)": lambda p: p.grad.detach().mul_(0.5),
    "p.grad.data.div_(4)": lambda p: p.grad.data.div_(4),
    "p.grad.clamp_(-0.1, 0.1)": lambda p: p.grad.clamp_(-0.1, 0.1),
    "p.grad.nan_to_num_()": lambda p: p.grad.nan_to_num_(),
    "p.grad.data.zero_()": lambda p: p.grad.data.zero_(),
    "p.grad.data.add_(p.data, alpha=0.1)": lambda p: p.grad.data.add_(p.data, alpha=0.1),
    "p.grad.sign_()": lambda p: p.grad.sign_(),
    "p.grad.data *= 2": _scaled_in_place,
}


def _losses(rank: int, world_size: int, kind: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for name, change in CHANGES.items():
        torch.manual_seed(0)
        model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
        if kind == "FSDP1":
            with fsdp1_on_cpu():
                model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
        elif kind == "shim":
            model = FSDP(model, device_id=torch.device("cpu"), use_orig_params=True)
        else:
            fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(10 + rank)
        found[name] = []
        for _ in range(4):
            loss = model(torch.randn(4, 6)).square().mean()
            loss.backward()
            for parameter in model.parameters():
                # Under FSDP1 a rank may have nothing of a parameter, and then no gradient.
                if parameter.grad is not None:
                    change(parameter)
            optimizer.step()
            optimizer.zero_grad()
            found[name].append(loss.item())
    return found


@pytest.fixture(scope="module")
def losses(pool: Pool) -> dict[str, list[dict[str, list[float]]]]:
    return {kind: pool.run(_losses, 2, kind) for kind in ("FSDP1", "FSDP2", "shim")}


@pytest.mark.parametrize("kind", ["FSDP2", "shim"])
@pytest.mark.parametrize("name", CHANGES)
def test_it_trains_alike(losses: dict[str, list[dict[str, list[float]]]], name: str, kind: str) -> None:
    assert [each[name] for each in losses[kind]] == [each[name] for each in losses["FSDP1"]]


def test_a_change_is_seen(losses: dict[str, list[dict[str, list[float]]]]) -> None:
    first = losses["FSDP1"][0]
    assert len({tuple(first[name]) for name in CHANGES}) > len(CHANGES) // 2
