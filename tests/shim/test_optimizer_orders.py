"""Optimizers that hold the parameters in another order on each rank: what is loaded into them meets entry by entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.tensor import DTensor

import fsdp_compat
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.models import build, loss_of
from tests.shim.training import POLICIES, clean, quiet_fsdp1


def one_group(model: nn.Module, rank: int) -> torch.optim.Optimizer:
    params = list(model.parameters())
    return torch.optim.Adam(params[::-1] if rank % 2 else params, lr=0.01)


def two_groups(model: nn.Module, rank: int) -> torch.optim.Optimizer:
    params = list(model.parameters())
    groups: list[dict[str, Any]] = [{"params": params[2::2] + params[:1]}, {"params": params[1::2], "lr": 0.05}]
    if rank % 2:
        groups = [{**group, "params": group["params"][::-1]} for group in groups]
    return torch.optim.Adam(groups, lr=0.01)


MAKERS = {"one group": one_group, "two groups": two_groups}


def shard_full(face: Any, model: Any, optimizer: Any) -> dict[str, Any]:
    return face.shard_full_optim_state_dict(
        face.full_optim_state_dict(model, optimizer, rank0_only=False), model, optim=optimizer
    )


def scatter_full(face: Any, model: Any, optimizer: Any) -> dict[str, Any]:
    full = face.full_optim_state_dict(model, optimizer)
    return face.scatter_full_optim_state_dict(full or None, model, optim=optimizer)


def to_load(face: Any, model: Any, optimizer: Any) -> dict[str, Any]:
    return face.optim_state_dict_to_load(model, optimizer, face.optim_state_dict(model, optimizer))


def flatten_sharded(face: Any, model: Any, optimizer: Any) -> dict[str, Any]:
    return face.flatten_sharded_optim_state_dict(face.sharded_optim_state_dict(model, optimizer), model, optimizer)


WAYS: dict[str, Callable[..., dict[str, Any]]] = {
    function.__name__: function for function in (shard_full, scatter_full, to_load, flatten_sharded)
}


def loaded(rank: int, world_size: int, face: str, maker: str, way: str) -> list[str]:
    """Worker: the names in the state that is to be loaded, in its order."""
    made = {"fsdp1": FSDP1, "shim": fsdp_compat.FSDP}[face]
    with quiet_fsdp1():
        model = made(build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, use_orig_params=True)
        optimizer = MAKERS[maker](model, rank)
        loss_of(model, rank, 0).backward()
        optimizer.step()
        before = {param: dict(state) for param, state in optimizer.state.items()}
        state = WAYS[way](made, model, optimizer)
        held = [param for group in optimizer.param_groups for param in group["params"]]
        names = {param: clean(name) for name, param in model.named_parameters()}
        optimizer.load_state_dict(state)
    for entry in optimizer.state_dict()["state"].values():
        for value in entry.values():
            if isinstance(value, DTensor):
                value.full_tensor()
    # FSDP1 is no measure of values here: on the CPU it shares memory between what is saved and what is trained.
    for param, values in before.items() if face == "shim" else ():
        for key, value in values.items():
            now = optimizer.state[param][key]
            assert torch.equal(_local(now), _local(value)), (names[param], key)
    return [names[held[number]] for number in state["state"]]


def _local(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("maker", MAKERS)
def test_the_state_to_load_is_in_the_order_of_the_model(pool: Pool, maker: str, way: str) -> None:
    expected = [name for name, _ in build().named_parameters()]
    assert pool.run(loaded, 2, "shim", maker, way) == [expected] * 2


@pytest.mark.parametrize("maker", MAKERS)
def test_as_under_fsdp1(pool: Pool, maker: str) -> None:
    # FSDP1 leaves out what this rank has no part of.
    ours = pool.run(loaded, 2, "shim", maker, "to_load")
    for names, found in zip(ours, pool.run(loaded, 2, "fsdp1", maker, "to_load"), strict=True):
        assert found == [name for name in names if name in found]


class Extended(nn.Module):
    """``build()`` with a parameter more than was saved, inside a unit or beside all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build()


def with_more(rank: int, world_size: int, face: str, inside: bool, grouped: bool) -> str:
    """Worker: what is said of a state that lacks the parameter."""
    made = {"fsdp1": FSDP1, "shim": fsdp_compat.FSDP}[face]
    models: list[Any] = []
    for more in (False, True):
        outer: Any = Extended().to(DEVICE)
        if more:
            where = outer.model.blocks[1] if inside else outer
            where.register_parameter("more", nn.Parameter(torch.ones(3, device=DEVICE)))
        with quiet_fsdp1():
            outer.model = made(outer.model, auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE)
        models.append(outer)
    first, second = models
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.01) for model in models]
    with quiet_fsdp1():
        loss_of(first.model, rank, 0).backward()
        optimizers[0].step()
        state = made.full_optim_state_dict(first, optimizers[0], rank0_only=False)
        if not grouped:
            del state["param_groups"]
        try:
            made.shard_full_optim_state_dict(state, second, optim=optimizers[1])
        except ValueError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("grouped", [True, False])
def test_a_state_that_lacks_a_part_of_a_unit_is_refused_in_fsdp1s_words(pool: Pool, grouped: bool) -> None:
    words = "All unflattened parameters comprising a single flat parameter must have scalar state with the same value"
    for face in ("fsdp1", "shim"):
        assert all(answer.startswith(words) for answer in pool.run(with_more, 2, face, True, grouped))
    # Beside the units it is nobody's business.
    assert pool.run(with_more, 2, "shim", False, grouped) == ["", ""]
