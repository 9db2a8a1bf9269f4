"""What FSDP227 says about elements, views, addresses and orders of a parameter, measured on two ranks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from tests.parity.cpu import fsdp1_on_cpu
from tests.pool import Pool

#: What a program takes of a weight with an odd number of rows, and whether it raises under FSDP2.
USES: dict[str, tuple[Callable[[torch.Tensor], Any], bool]] = {
    "map(torch.norm)": (lambda w: [float(one) for one in map(torch.norm, [w])], False),
    "reduce": (lambda w: float(functools.reduce(lambda total, p: total + p.norm(), [w], torch.zeros(()))), False),
    "median().item()": (lambda w: w.median().item(), False),
    "(w == 0).float().mean().item()": (lambda w: (w < 0).float().mean().item(), False),
    "w[0].sum().item()": (lambda w: w[0].sum().item(), False),
    "math.prod(w.shape)": (lambda w: math.prod(w.shape), False),
    "len(w)": (len, False),
    "data_ptr() == 0": (lambda w: w.data_ptr() == 0, False),
    "view(-1)": (lambda w: w.view(-1).shape, True),
    "flatten()": (lambda w: w.flatten().sum().item(), True),
    "normalize(dim=0).tolist()": (lambda w: F.normalize(w, dim=0).tolist(), True),
    "w[0].tolist()": (lambda w: w[0].tolist(), True),
    "unique()": (lambda w: w.unique().shape, True),
    "list(w)": (lambda w: len(list(w)), True),
    "storage": (lambda w: w.untyped_storage().data_ptr() > 0, True),
    "parameters_to_vector": (lambda w: torch.nn.utils.parameters_to_vector([w]).shape, True),
}


def _taken(rank: int, world_size: int, fsdp1: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(6, 5, bias=False)
    if fsdp1:
        with fsdp1_on_cpu():
            model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    else:
        fully_shard(model)
    (weight,) = model.parameters()
    found: dict[str, Any] = {}
    for name, (take, _) in USES.items():
        try:
            found[name] = take(weight.detach())
        except (RuntimeError, TypeError) as error:
            found[name] = type(error)
    return found


@pytest.fixture(scope="module")
def taken(pool: Pool) -> dict[bool, list[dict[str, Any]]]:
    return {fsdp1: pool.run(_taken, 2, fsdp1) for fsdp1 in (True, False)}


@pytest.mark.parametrize("name", USES)
def test_it_raises_or_gives_another_number(taken: dict[bool, list[dict[str, Any]]], name: str) -> None:
    before, after = ([each[name] for each in taken[fsdp1]] for fsdp1 in (True, False))
    assert not any(isinstance(each, type) for each in before)
    assert all(isinstance(each, type) for each in after) is USES[name][1]
    assert before != after
