"""torch's optimizers, each with the kernels it may step with, against the same optimizer under real FSDP1."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.tensor import DTensor

import fsdp_compat
from tests.device import DEVICE, ranks
from tests.pool import Pool
from tests.shim.models import build, loss_of
from tests.shim.training import POLICIES, quiet_fsdp1, weights_here, weights_of

Make = Callable[..., torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.1),
    "SGD with momentum": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": functools.partial(torch.optim.Adam, lr=0.01, amsgrad=True),
    "AdamW": functools.partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1),
    "Adagrad": functools.partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.1),
    "RMSprop": functools.partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "NAdam": functools.partial(torch.optim.NAdam, lr=0.01),
}
# torch's DTensor has no rule for the fused kernels of SGD and Adagrad: their step() raises NotImplementedError.
FUSED = ("Adam", "AdamW")
KERNELS = {
    name: [{"foreach": False}, {"foreach": True}, *([{"fused": True}] if name in FUSED else [])] for name in OPTIMIZERS
}


def groups(model: Any) -> list[dict[str, Any]]:
    """Two groups with settings of their own, in the order of the model."""
    matrices = [param for name, param in model.named_parameters() if "bias" not in name]
    biases = [param for name, param in model.named_parameters() if "bias" in name]
    return [{"params": matrices}, {"params": biases, "lr": 0.003, "weight_decay": 0.0}]


def stepped(rank: int, side: str, name: str, kernels: dict[str, bool], *, first: bool) -> Any:
    """Losses and weights after three steps; with ``first`` the optimizer is built and stepped before wrapping."""
    model: Any = build()
    keywords = {"auto_wrap_policy": POLICIES["transformer"](), "device_id": DEVICE, "use_orig_params": True}
    optimizer = OPTIMIZERS[name](groups(model), **kernels) if first else None
    with quiet_fsdp1():
        model = {"fsdp1": FSDP1, "fsdp_compat": fsdp_compat.FSDP}[side](model, **keywords)
    if optimizer is None:
        optimizer = OPTIMIZERS[name](groups(model), **kernels)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if side == "fsdp_compat":
        return losses, weights_of(model)
    with FSDP1.summon_full_params(model):
        return losses, weights_here(model)


def disagreements(rank: int, world_size: int, name: str, first: bool) -> list[str]:
    """Worker: with which kernels an optimizer does not train the same."""
    found = []
    for kernels in [{"foreach": False}] if first else KERNELS[name]:
        theirs, ours = (stepped(rank, side, name, kernels, first=first) for side in ("fsdp1", "fsdp_compat"))
        # A fused kernel computes the last elements of a tensor, which are others here and there, in another way.
        rounding = 1e-7 if kernels.get("fused") else 0.0
        try:
            torch.testing.assert_close(theirs, ours, rtol=rounding, atol=rounding)
        except AssertionError as error:
            found.append(f"{kernels}: {error}")
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_trains_as_under_fsdp1(pool: Pool, name: str) -> None:
    assert pool.run(disagreements, ranks(2), name, False) == [[]] * ranks(2)


# FSDP1 does not shard the state that Adagrad has from the start; test_optimizers.py has that under the shim.
@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "Adagrad"])
def test_an_optimizer_that_was_built_first_trains_as_under_fsdp1(pool: Pool, name: str) -> None:
    assert pool.run(disagreements, ranks(2), name, True) == [[]] * ranks(2)


class Noted(torch.optim.Adam):
    """Notes the groups that a step sees, and fails where it is told to."""

    seen: list[tuple[Any, set[bool]]]
    fails = False

    def step(self, closure: Any = None) -> Any:
        self.seen = [
            (group["foreach"], {isinstance(p, DTensor) for p in group["params"]}) for group in self.param_groups
        ]
        if self.fails:
            raise ValueError("no step")
        return super().step(closure)


def mixed(rank: int, world_size: int, foreach: bool | None) -> None:
    """Worker: a group with sharded and ordinary parameters is stepped kind by kind, and is whole again afterwards."""
    model = fsdp_compat.FSDP(build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE)
    extra = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = Noted([*model.parameters(), extra], lr=0.01, foreach=foreach)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3, device=DEVICE))], "lr": 0.1})
    after: list[int] = []
    optimizer.register_step_post_hook(lambda optimizer, *_: after.append(len(optimizer.param_groups)))
    before = [list(group["params"]) for group in optimizer.param_groups]
    for optimizer.fails in (False, True, False):
        (loss_of(model, rank, 0) + extra.square().sum()).backward()
        with pytest.raises(ValueError, match="no step") if optimizer.fails else contextlib.nullcontext():
            optimizer.step()
        assert optimizer.seen == [(foreach, {True}), (foreach, {False}), (foreach, {False})]
    assert [[id(param) for param in group["params"]] for group in optimizer.param_groups] == [
        [id(param) for param in params] for params in before
    ]
    assert len(optimizer.state) == len(before[0])
    # Twice where torch hooks the step of the base class, too.
    assert set(after) == {2}
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.1]


@pytest.mark.parametrize("foreach", [None, True])
def test_a_kernel_takes_sharded_and_ordinary_parameters_one_after_the_other(pool: Pool, foreach: bool | None) -> None:
    pool.run(mixed, ranks(2), foreach)
