"""Parameters that a step does not use, on some ranks or on all: their gradients, and what the optimizer does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.training import Outcome, assert_same, quiet_fsdp1, weights_here, weights_of

IMPLEMENTATIONS = ("fsdp1", "fsdp_compat")


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(5, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(x)


class Branches(nn.Module):
    """``one`` and ``two`` have equal shapes and belong to the root; ``expert`` is a unit of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 5)
        self.one = nn.Linear(5, 5, bias=False)
        self.two = nn.Linear(5, 5, bias=False)
        self.expert = Expert()

    def forward(self, x: torch.Tensor, branch: str) -> torch.Tensor:
        x = torch.tanh(self.stem(x))
        return x if branch == "stem" else self.get_submodule(branch)(x)


def wrapped(names: Any) -> Any:
    policy = fsdp_compat.ModuleWrapPolicy({Expert})
    return names(Branches().to(DEVICE), auto_wrap_policy=policy, device_id=DEVICE, use_orig_params=True)


def train(rank: int, world_size: int, implementation: str, branches: list[str], silent: bool) -> Outcome:
    """Worker: three steps, where each rank takes its branch by turns."""
    torch.manual_seed(0)
    names: Any = FSDP1 if implementation == "fsdp1" else fsdp_compat.FSDP
    with quiet_fsdp1():
        model = wrapped(names)
        # Decay and momentum move a weight whose gradient is zero, and leave one alone whose gradient is None.
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.3)
        losses = []
        for step in range(3):
            x = torch.randn(4, 5, generator=torch.Generator().manual_seed(10 * rank + step)).to(DEVICE)
            branch = branches[(rank + step) % len(branches)]
            if silent:
                with model.no_sync():
                    model(x, branch).square().sum().backward()
                branch = "stem"
            loss = model(x, branch).square().sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if implementation == "fsdp_compat":
            weights = weights_of(model)
        else:
            with FSDP1.summon_full_params(model):
                weights = weights_here(model)
    return Outcome(losses, [], weights)


# FSDP1 breaks off where a unit has been used under no_sync() and is not in the step after it.
@pytest.mark.parametrize(
    ("branches", "silent"),
    [
        *((branches, silent) for branches in (["stem"], ["one", "two"], ["stem", "one"]) for silent in (False, True)),
        (["expert"], False),
    ],
    ids=str,
)
def test_unused_parameters_train_as_under_fsdp1(pool: Pool, branches: list[str], silent: bool) -> None:
    theirs = pool.run(train, 2, "fsdp1", branches, silent)
    ours = pool.run(train, 2, "fsdp_compat", branches, silent)
    for one, other in zip(theirs, ours, strict=True):
        assert_same(one, other)


def which_gradients(rank: int, world_size: int, implementation: str) -> dict[str, bool | None]:
    """Worker: for each parameter None without a gradient, else whether any of it is not zero."""
    torch.manual_seed(0)
    names: Any = FSDP1 if implementation == "fsdp1" else fsdp_compat.FSDP
    with quiet_fsdp1():
        model = wrapped(names)
        model(torch.ones(2, 5).to(DEVICE), "one").sum().backward()
        with names.summon_full_params(model, with_grads=True):
            return {
                name.replace("_fsdp_wrapped_module.", ""): None if param.grad is None else bool(param.grad.any())
                for name, param in model.named_parameters()
            }


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_used_unit_has_zeros_and_an_unused_one_nothing(pool: Pool, implementation: str) -> None:
    for found in pool.run(which_gradients, 2, implementation):
        assert found == {
            "stem.weight": True,
            "stem.bias": True,
            "one.weight": True,
            "two.weight": False,
            "expert.proj.weight": None,
            "expert.proj.bias": None,
        }
