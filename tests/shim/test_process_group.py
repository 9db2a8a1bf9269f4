"""The group of a model that is sharded by fully_shard itself, and of what is no single unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import fsdp_compat
from tests.device import DEVICE
from tests.pool import Pool, WorkerError

NAMES = ("replicate", "shard")


def sharded(shape: tuple[int, ...], keeps: bool = False) -> nn.Module:
    mesh = init_device_mesh(DEVICE.type, shape, mesh_dim_names=NAMES[2 - len(shape) :])
    return fully_shard(nn.Sequential(nn.Linear(4, 4)).to(DEVICE), mesh=mesh, reshard_after_forward=not keeps)


def gathered() -> nn.Module:
    model = sharded((2, 2), keeps=True)
    with torch.no_grad():
        model(torch.ones(1, 4, device=DEVICE))
    assert not hasattr(next(model.parameters()), "device_mesh")
    return model


def without_parameters(several: bool = False) -> nn.Module:
    """Each child is a unit, over pairs of ranks; with ``several`` the second is over all."""
    mesh = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=NAMES)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to(DEVICE)
    fully_shard(model[0], mesh=mesh["shard"])
    fully_shard(model[1], mesh=init_device_mesh(DEVICE.type, (4,)) if several else mesh["shard"])
    return fully_shard(model, mesh=mesh["shard"])


def of_compat() -> nn.Module:
    group = dist.new_group([dist.get_rank() // 2 * 2, dist.get_rank() // 2 * 2 + 1], use_local_synchronization=True)
    model = fsdp_compat.shard(nn.Sequential(nn.Linear(4, 4)), process_group=group, device_id=DEVICE)
    assert fsdp_compat.process_group(model) is group
    return model


PAIR, ALL = [[0, 1], [0, 1], [2, 3], [2, 3]], [[0, 1, 2, 3]] * 4
MODELS: dict[str, tuple[Callable[[], nn.Module], list[list[int]]]] = {
    "sharded": (lambda: sharded((4,)), ALL),
    "copied": (lambda: sharded((4, 1)), ALL),
    "hybrid": (lambda: sharded((2, 2)), PAIR),
    "gathered": (gathered, PAIR),
    "compiled": (lambda: torch.compile(sharded((2, 2))), PAIR),
    "without parameters": (without_parameters, PAIR),
    "fsdp_compat": (of_compat, PAIR),
    "DDP": (lambda: DistributedDataParallel(nn.Linear(4, 4).to(DEVICE)), ALL),
}


def ranks_of(rank: int, world_size: int, form: str) -> list[int]:
    """Worker: the ranks of the group of a model."""
    return dist.get_process_group_ranks(fsdp_compat.process_group(MODELS[form][0]()))


@pytest.mark.parametrize("form", MODELS)
def test_the_group_that_fsdp1_had(pool: Pool, form: str) -> None:
    assert pool.run(ranks_of, 4, form) == MODELS[form][1]


def refused(rank: int, world_size: int, several: bool) -> Any:
    """Worker: there is no one group to be found."""
    return fsdp_compat.process_group(without_parameters(several=True) if several else nn.Linear(2, 2))


@pytest.mark.parametrize(("several", "message"), [(True, "several process groups"), (False, "no attribute")])
def test_a_group_is_never_guessed(pool: Pool, several: bool, message: str) -> None:
    with pytest.raises(WorkerError, match=message):
        pool.run(refused, 4, several)
