"""Numbers of one sharded gradient on two ranks: what FSDP222 and FSDP227 say about them is measured here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from tests.parity.cpu import fsdp1_on_cpu
from tests.pool import Pool

#: What a program takes of a gradient, and whether FSDP2's number is one of the whole gradient.
NUMBERS: dict[str, tuple[Callable[[torch.Tensor], Any], bool]] = {
    "norm().item()": (lambda grad: grad.norm().item(), False),
    "float(abs().sum())": (lambda grad: float(grad.abs().sum()), False),
    "sum().item()": (lambda grad: grad.sum().item(), False),
    "mean().item()": (lambda grad: grad.mean().item(), True),
    "std().item()": (lambda grad: grad.std().item(), True),
    "numel()": (lambda grad: grad.numel(), True),
}
RAISING: dict[str, Callable[[torch.Tensor], Any]] = {
    "f-string": lambda grad: f"{grad.norm():.3f}",
    "format": lambda grad: format(grad.norm(), ".3f"),
    "tolist": lambda grad: grad.norm().tolist(),
    "numpy": lambda grad: grad.detach().cpu().numpy(),
}


def _numbers(rank: int, world_size: int, fsdp1: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(6, 5, bias=False)
    if fsdp1:
        with fsdp1_on_cpu():
            model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    else:
        fully_shard(model)
    torch.manual_seed(10 + rank)
    model(torch.randn(4, 6)).square().sum().backward()
    (parameter,) = model.parameters()
    assert parameter.grad is not None
    found: dict[str, Any] = {name: take(parameter.grad) for name, (take, _) in NUMBERS.items()}
    for name, make in RAISING.items():
        try:
            make(parameter.grad)
        except (RuntimeError, TypeError) as error:
            found[name] = type(error).__name__
        else:
            found[name] = None
    return found


@pytest.fixture(scope="module")
def numbers(pool: Pool) -> dict[bool, list[dict[str, Any]]]:
    return {fsdp1: pool.run(_numbers, 2, fsdp1) for fsdp1 in (True, False)}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_number_is_another_one(numbers: dict[bool, list[dict[str, Any]]], name: str) -> None:
    before, after = ([each[name] for each in numbers[fsdp1]] for fsdp1 in (True, False))
    assert before != after
    assert (after[0] == after[1]) == NUMBERS[name][1]


@pytest.mark.parametrize("name", RAISING)
def test_a_format_raises(numbers: dict[bool, list[dict[str, Any]]], name: str) -> None:
    assert all(each[name] is None for each in numbers[True])
    assert all(each[name] is not None for each in numbers[False])
