"""What training loops do besides calling torch's optimizers: optimizers of their own, none, and uneven accumulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from fsdp_compat import CPUOffload, ShardingStrategy
from tests.device import DEVICE, ranks
from tests.pool import Pool
from tests.shim.models import build, loss_of
from tests.shim.training import POLICIES, Outcome, assert_same, quiet_fsdp1, weights_here, weights_of


class SignedMomentum(torch.optim.Optimizer):
    """An optimizer as users write them, with torch's operators on each parameter."""

    def __init__(self, params: Iterable[Any], lr: float, beta: float) -> None:
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                average = self.state[param].setdefault("average", torch.zeros_like(param))
                update = average.mul(group["beta"]).add_(param.grad, alpha=1 - group["beta"]).sign_()
                param.mul_(1 - group["lr"] * 0.1).add_(update, alpha=-group["lr"])
                average.lerp_(param.grad, 0.1)


class NoOptimizer:
    """Steps as code without an optimizer does."""

    def __init__(self, params: Iterable[torch.nn.Parameter]) -> None:
        self.params = list(params)

    @torch.no_grad()
    def step(self) -> None:
        for param in self.params:
            if param.grad is not None:
                param.sub_(param.grad, alpha=0.1)

    def zero_grad(self) -> None:
        for param in self.params:
            param.grad = None


OPTIMIZERS: dict[str, Callable[[Iterable[Any]], Any]] = {
    "of the user's own": lambda params: SignedMomentum(params, lr=0.01, beta=0.9),
    "none": NoOptimizer,
    "torch's": lambda params: torch.optim.Adam(params, lr=0.01),
}


def train(rank: int, world_size: int, implementation: str, optimizer: str, uneven: bool) -> Outcome:
    """Worker: three steps; ``uneven`` lets each rank accumulate another number of micro-batches.

    That needs a strategy under which they communicate nothing: what was gathered stays until gradients are reduced.
    """
    strategy = ShardingStrategy.SHARD_GRAD_OP if uneven else ShardingStrategy.FULL_SHARD
    names: Any = FSDP1 if implementation == "fsdp1" else fsdp_compat.FSDP
    with quiet_fsdp1():
        model = names(
            build(),
            sharding_strategy=strategy,
            auto_wrap_policy=POLICIES["transformer"](),
            device_id=DEVICE,
            use_orig_params=True,
        )
        stepper = OPTIMIZERS[optimizer](model.parameters())
        losses = []
        for step in range(3):
            with model.no_sync():
                for micro in range(rank + step if uneven else 0):
                    loss_of(model, rank, 10 * step + micro + 1).backward()
            loss = loss_of(model, rank, 10 * step)
            loss.backward()
            stepper.step()
            stepper.zero_grad()
            losses.append(loss.item())
        if implementation == "fsdp_compat":
            return Outcome(losses, [], weights_of(model))
        with FSDP1.summon_full_params(model):
            weights = weights_here(model)
    return Outcome(losses, [], weights)


@pytest.mark.parametrize(
    ("optimizer", "uneven"), [("of the user's own", False), ("none", False), ("torch's", True)], ids=str
)
def test_trains_as_fsdp1(pool: Pool, optimizer: str, uneven: bool) -> None:
    theirs, ours = (pool.run(train, ranks(2), side, optimizer, uneven) for side in ("fsdp1", "fsdp_compat"))
    for one, other in zip(theirs, ours, strict=True):
        assert_same(one, other)


def clipped(rank: int, world_size: int, offload: bool, norm_type: float) -> tuple[float, dict[str, torch.Tensor]]:
    """Worker: one clipped step, whose norm comes back as a plain tensor wherever the gradients are."""
    model: Any = fsdp_compat.FSDP(
        build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, cpu_offload=CPUOffload(offload)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of(model, rank, 0).backward()
    norm = model.clip_grad_norm_(0.05, norm_type=norm_type)
    assert type(norm) is torch.Tensor
    optimizer.step()
    return norm.item(), {name: weight.cpu() for name, weight in weights_of(model).items()}


@pytest.mark.parametrize("norm_type", [2.0, float("inf")])
def test_offload_changes_nothing_about_clipping(pool: Pool, norm_type: float) -> None:
    kept, offloaded = (pool.run(clipped, ranks(2), offload, norm_type) for offload in (False, True))
    for (norm, weights), (other_norm, other_weights) in zip(kept, offloaded, strict=True):
        assert norm == other_norm
        assert all(torch.equal(weight, other_weights[name]) for name, weight in weights.items())
