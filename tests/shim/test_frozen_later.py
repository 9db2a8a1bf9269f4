"""Parameters that are frozen and thawed while training, and what programs note on parameters, as under FSDP1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

from fsdp_compat import FSDP, ShardingStrategy
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.models import build, loss_of
from tests.shim.training import POLICIES, clean, quiet_fsdp1, weights_here


def trained(face: Any, rank: int, strategy: ShardingStrategy, held: bool) -> tuple[list[float], dict[str, Any]]:
    """Epochs of two steps after an evaluation, that freeze other parameters each; the losses and the weights.

    ``held``: the flags are set on parameters that the program kept from before it trained.
    """
    model = build(0)
    model = face(
        model,
        device_id=DEVICE,
        use_orig_params=True,
        sharding_strategy=strategy,
        auto_wrap_policy=POLICIES["transformer"](),
    )
    parameters = {clean(name): parameter for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(parameters.values(), lr=0.05, momentum=0.9)
    losses = []
    for epoch in range(4):
        if epoch == 1:
            with face.summon_full_params(model):
                pass
        with torch.no_grad():
            losses.append(loss_of(model, rank, 100 + epoch).item())
        if not held:
            parameters = {clean(name): parameter for name, parameter in model.named_parameters()}
        for name, parameter in parameters.items():
            parameter.requires_grad_(epoch % 2 == 1 or not ("embed" in name or "blocks.0.up" in name))
        for step in range(2):
            optimizer.zero_grad()
            loss = loss_of(model, rank, 10 * epoch + step)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    with face.summon_full_params(model):
        weights = weights_here(model)
    return losses, weights


def both(rank: int, world_size: int, strategy: ShardingStrategy, held: bool) -> None:
    with quiet_fsdp1():
        losses, weights = trained(FSDP1, rank, strategy, held)
    others, other_weights = trained(FSDP, rank, strategy, held)
    assert others == losses
    assert other_weights.keys() == weights.keys()
    for name, value in weights.items():
        assert torch.equal(other_weights[name], value), name


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("strategy", [ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP])
def test_freezing_after_an_evaluation_holds(pool: Pool, strategy: ShardingStrategy, held: bool) -> None:
    """After it some units are still gathered, and what they show then are other parameters than those they keep."""
    pool.run(both, 2, strategy, held)


def marks(rank: int, world_size: int, use_orig_params: bool) -> None:
    def noted(face: Any) -> list[tuple[str, Any]]:
        model = build(0)
        for name, parameter in model.named_parameters():
            parameter.no_decay = "bias" in name  # type: ignore[attr-defined]
        wrapped = face(
            model, device_id=DEVICE, use_orig_params=use_orig_params, auto_wrap_policy=POLICIES["transformer"]()
        )
        return [(clean(name), getattr(value, "no_decay", None)) for name, value in wrapped.named_parameters()]

    with quiet_fsdp1():
        wanted = noted(FSDP1)
    held = noted(FSDP)
    if use_orig_params:
        assert held == wanted
    else:
        assert {mark for _, mark in held} == {mark for _, mark in wanted} == {None}


@pytest.mark.parametrize("use_orig_params", [True, False])
def test_attributes_of_parameters_stay_as_under_fsdp1(pool: Pool, use_orig_params: bool) -> None:
    pool.run(marks, 2, use_orig_params)
