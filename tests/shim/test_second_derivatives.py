"""``create_graph=True``: gradient penalties train as under FSDP1 with NO_SHARD, its only strategy that can."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from fsdp_compat import MixedPrecision, ModuleWrapPolicy, ShardingStrategy
from fsdp_compat.torch_.param_groups import param_groups
from tests.device import DEVICE, ranks
from tests.pool import Pool
from tests.sampling import pairwise
from tests.shim.collectives import Collectives
from tests.shim.training import quiet_fsdp1, weights_here, weights_of


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.score = nn.Linear(5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.score(x)


def penalty(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return (slope.norm(dim=1) - 1).square().mean()


def penalty_alone(model: nn.Module, x: torch.Tensor) -> None:
    penalty(model, x).backward()


def beside_a_loss(model: nn.Module, x: torch.Tensor) -> None:
    (model(x).mean() + 10 * penalty(model, x)).backward()


def after_a_loss(model: nn.Module, x: torch.Tensor) -> None:
    model(x).mean().backward()
    penalty(model, x).backward()


def of_the_same_forward(model: nn.Module, x: torch.Tensor) -> None:
    x = x.clone().requires_grad_()
    score = model(x)
    (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
    (score.mean() + slope.square().sum()).backward()


def third_derivative(model: nn.Module, x: torch.Tensor) -> None:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x, create_graph=True)
    second.square().sum().backward()


def only_looked_at(model: nn.Module, x: torch.Tensor) -> None:
    """No backward follows: the next forward must see what the optimizer has changed."""
    penalty(model, x)
    for param in model.parameters():
        param.grad = torch.ones_like(param) * float(model(x).detach().sum())


def accumulated(model: nn.Module, x: torch.Tensor) -> None:
    model(x - 1).mean().backward()
    penalty(model, x).backward()
    model(x + 1).mean().backward()


PROGRAMS: dict[str, Callable[[nn.Module, torch.Tensor], None]] = {
    function.__name__: function
    for function in (
        penalty_alone,
        beside_a_loss,
        after_a_loss,
        of_the_same_forward,
        third_derivative,
        only_looked_at,
        accumulated,
    )
}


def made(face: Any, strategy: str, world_size: int, policy: bool, **arguments: Any) -> Any:
    if "HYBRID" in strategy:
        arguments["device_mesh"] = init_device_mesh(DEVICE.type, (world_size // 2, 2), mesh_dim_names=("a", "b"))
    with quiet_fsdp1():
        return face(
            Critic(),
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}) if policy else None,
            sharding_strategy=ShardingStrategy[strategy],
            device_id=DEVICE,
            use_orig_params=True,
            **arguments,
        )


def trained(
    rank: int, world_size: int, program: str, face: str, strategy: str, policy: bool, double: bool
) -> dict[str, torch.Tensor]:
    """Worker: the weights after three steps, and nothing left gathered that an ordinary step would not leave."""
    model = made({"fsdp1": FSDP1, "shim": fsdp_compat.FSDP}[face], strategy, world_size, policy)
    if double:
        model.double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * rank + step)).to(DEVICE)
        with quiet_fsdp1():
            PROGRAMS[program](model, x.double() if double else x)
        optimizer.step()
    if face == "shim":
        if program != "only_looked_at":
            assert not any(
                group.is_unsharded for unit in fsdp_compat.fsdp_modules(model) for group in param_groups(unit)
            )
        return weights_of(model)
    return weights_here(model)


@pytest.mark.parametrize(
    ("program", "strategy", "policy"),
    pairwise(itertools.product(PROGRAMS, ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"], [True, False])),
)
def test_trains_as_fsdp1_without_sharding(pool: Pool, program: str, strategy: str, policy: bool) -> None:
    theirs = pool.run(trained, 2, program, "fsdp1", "NO_SHARD", policy, False)
    ours = pool.run(trained, 2, program, "shim", strategy, policy, False)
    rounding = 0.0 if strategy == "NO_SHARD" or program != "accumulated" else 1e-6
    for first, second in zip(theirs, ours, strict=True):
        for name, weight in first.items():
            torch.testing.assert_close(second[name], weight, rtol=0, atol=rounding, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("strategy", ["HYBRID_SHARD", "_HYBRID_SHARD_ZERO2", "SHARD_GRAD_OP"])
def test_trains_on_four_ranks(pool: Pool, strategy: str) -> None:
    theirs = pool.run(trained, 4, "beside_a_loss", "fsdp1", "NO_SHARD", True, True)
    for first, second in zip(theirs, pool.run(trained, 4, "beside_a_loss", "shim", strategy, True, True), strict=True):
        for name, weight in first.items():
            torch.testing.assert_close(second[name], weight, rtol=0, atol=1e-11)


def in_another_order(rank: int, world_size: int, face: str, strategy: str) -> dict[str, torch.Tensor]:
    """Worker: another forward between a penalty and its backward, which FSDP1 can do where it shards."""
    model = made({"fsdp1": FSDP1, "shim": fsdp_compat.FSDP}[face], strategy, world_size, True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * rank + step)).to(DEVICE)
        optimizer.zero_grad()
        with quiet_fsdp1():
            first = penalty(model, x)
            (first + model(x + 1).mean()).backward()
        optimizer.step()
    if face == "shim":
        return weights_of(model)
    with FSDP1.summon_full_params(model):
        return weights_here(model)


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP"])
def test_a_forward_may_come_between(pool: Pool, strategy: str) -> None:
    theirs, ours = (pool.run(in_another_order, 2, face, strategy) for face in ("fsdp1", "shim"))
    for first, second in zip(theirs, ours, strict=True):
        assert all(torch.equal(weight, second[name]) for name, weight in first.items())


def of_parameters(rank: int, world_size: int) -> None:
    """Worker: a penalty on gradients of parameters, which a strategy that keeps them whole has at hand."""
    model, reference = made(fsdp_compat.FSDP, "SHARD_GRAD_OP", world_size, True), Critic().to(DEVICE)
    batches = [
        torch.randn(4, 5, generator=torch.Generator().manual_seed(other)).to(DEVICE) for other in range(world_size)
    ]

    def loss(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
        value = part(x).square().mean()
        slopes = torch.autograd.grad(value, list(part.parameters()), create_graph=True)
        return value + sum(slope.square().sum() for slope in slopes)

    loss(model, batches[rank]).backward()
    for x in batches:
        (loss(reference, x) / world_size).backward()
    for param, expected in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(param.grad.full_tensor(), expected.grad, rtol=1e-5, atol=1e-6)


def test_penalty_on_gradients_of_parameters(pool: Pool) -> None:
    # One rank shards nothing, and its parameters are in no graph, as under FSDP1.
    pool.run(of_parameters, 2)


def counted(rank: int, world_size: int, strategy: str) -> list[dict[str, int]]:
    """Worker: collectives of a step with a penalty, and of ordinary steps before and after it."""
    model = made(fsdp_compat.FSDP, strategy, world_size, True)
    x = torch.ones(4, 5, device=DEVICE) * (rank + 1)
    counts = []
    for has_penalty in (False, True, False):
        with Collectives() as issued:
            (penalty(model, x) if has_penalty else model(x).sum()).backward()
        counts.append(dict(issued.counts))
    return counts


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("SHARD_GRAD_OP", {"gathers": 4, "scatters": 4}),
        ("FULL_SHARD", {"gathers": 8, "scatters": 4}),
        ("NO_SHARD", {"reductions": 4}),
    ],
)
def test_a_penalty_issues_the_collectives_of_an_ordinary_step(
    pool: Pool, strategy: str, expected: dict[str, int]
) -> None:
    assert pool.run(counted, 2, strategy)[0] == [expected] * 3


def in_low_precision(rank: int, world_size: int, strategy: str) -> None:
    precision = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = made(fsdp_compat.FSDP, strategy, world_size, True, mixed_precision=precision)
    before = weights_of(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    beside_a_loss(model, torch.ones(4, 5, device=DEVICE) * (rank + 1))
    optimizer.step()
    after = weights_of(model)
    # The last bias alone is out of reach of the penalty, and its gradient by the loss is one.
    torch.testing.assert_close(after["score.bias"], before["score.bias"] - 0.1)
    assert not any(torch.equal(after[name], before[name]) for name in before)


@pytest.mark.parametrize("strategy", ["NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD"])
def test_mixed_precision(pool: Pool, strategy: str) -> None:
    pool.run(in_low_precision, ranks(2), strategy)


def graph_of_gradients(rank: int, world_size: int, face: str) -> None:
    model = made({"fsdp1": FSDP1, "shim": fsdp_compat.FSDP}[face], "NO_SHARD", world_size, True)
    with pytest.raises(RuntimeError, match="FSDP does not support gradients of gradients"), quiet_fsdp1():
        model(torch.ones(4, 5, device=DEVICE)).sum().backward(create_graph=True)


@pytest.mark.parametrize("face", ["fsdp1", "shim"])
def test_gradients_that_are_part_of_a_graph_are_refused(pool: Pool, face: str) -> None:
    pool.run(graph_of_gradients, 2, face)
