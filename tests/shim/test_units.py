"""Which modules become units: exactly those that FSDP1 wraps, but for containers; decided without a process group."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.models import Block, Model, build
from tests.shim.training import POLICIES, clean, quiet_fsdp1

HALF = fsdp_compat.MixedPrecision(param_dtype=torch.bfloat16)


class Mixed(nn.Module):
    """BatchNorm, attention (a forced leaf of the size policy), a shared module, and nested containers."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleDict({"a": nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)), "b": Block(4, 6)})
        self.attention = nn.MultiheadAttention(4, 2)
        self.shared = nn.Linear(4, 4)
        self.again = nn.ModuleList([self.shared, nn.Linear(4, 4)])
        self.bn = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.ones(4))


MODELS: dict[str, Callable[[], nn.Module]] = {"model": build, "tied": lambda: Model(tied=True), "mixed": Mixed}

CHOICES: dict[str, Callable[[nn.Module], dict[str, Any]]] = {
    **{name: lambda _, policy=policy: {"auto_wrap_policy": policy()} for name, policy in POLICIES.items()},
    **{
        f"size-{size}": lambda _, size=size: {
            "auto_wrap_policy": functools.partial(fsdp_compat.size_based_auto_wrap_policy, min_num_params=size)
        }
        for size in (1, 20, 70, 100)
    },
    "size-leaves": lambda _: {
        "auto_wrap_policy": functools.partial(
            fsdp_compat.size_based_auto_wrap_policy, min_num_params=10, force_leaf_modules={nn.Sequential, Block}
        )
    },
    "or": lambda _: {
        "auto_wrap_policy": functools.partial(
            fsdp_compat._or_policy,
            policies=[
                functools.partial(fsdp_compat._module_wrap_policy, module_classes={Block}),
                functools.partial(fsdp_compat.size_based_auto_wrap_policy, min_num_params=50),
            ],
        )
    },
    "half-size": lambda _: {
        "auto_wrap_policy": functools.partial(fsdp_compat.size_based_auto_wrap_policy, min_num_params=100),
        "mixed_precision": HALF,
    },
    "half-module": lambda _: {
        "auto_wrap_policy": fsdp_compat.ModuleWrapPolicy({nn.Sequential}),
        "mixed_precision": HALF,
    },
    "ignoring": lambda model: {
        "auto_wrap_policy": fsdp_compat.always_wrap_policy,
        "ignored_modules": list(model.children())[:1],
    },
    "ignoring-size": lambda model: {
        "auto_wrap_policy": functools.partial(fsdp_compat.size_based_auto_wrap_policy, min_num_params=30),
        "ignored_states": [next(model.parameters())],
    },
}


def wrapped_by_fsdp1(rank: int, world_size: int) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Worker: name and class of what FSDP1 wraps, in its order of construction, for every choice and model."""
    found = {}
    original = FSDP1.__init__
    order: list[nn.Module] = []

    @functools.wraps(original)
    def recording(self: FSDP1, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(self, module, *args, **kwargs)
        order.append(module)

    FSDP1.__init__ = recording
    try:
        for key in CHOICES:
            for name, make in MODELS.items():
                order.clear()
                model = make()
                names = {module: path for path, module in model.named_modules()}
                with quiet_fsdp1():
                    FSDP1(model, device_id=DEVICE, use_orig_params=True, **CHOICES[key](model))
                found[key, name] = [(clean(names[module]), type(module).__name__) for module in order]
    finally:
        FSDP1.__init__ = original
    return found


def test_units_are_what_fsdp1_wraps(pool: Pool) -> None:
    (theirs,) = pool.run(wrapped_by_fsdp1, 1)
    containers = ("ModuleList", "ModuleDict")
    for (choice, name), wrapped in theirs.items():
        model = MODELS[name]()
        with warnings.catch_warnings():
            # Some policies match nothing in some models, and some models have BatchNorm.
            warnings.simplefilter("ignore")
            plan = fsdp_compat.plan(model, **CHOICES[choice](model))
        ours = [(unit.fqn, type(unit.module).__name__) for unit in plan.units]
        expected = [entry for entry in dict.fromkeys(wrapped) if entry[1] not in containers]
        assert ours == expected, f"{choice} on {name}"


def test_plan_notes_what_differs() -> None:
    plan = fsdp_compat.plan(build(tied=True), auto_wrap_policy=fsdp_compat.always_wrap_policy)
    assert plan.notes == (
        "blocks has no forward: its own parameters move to the enclosing unit",
        "embed.weight and head.weight are one parameter: it belongs to the root",
    )


@pytest.mark.parametrize("policy", [Block, 3, "Block"])
def test_what_is_no_policy_is_refused(policy: Any) -> None:
    with pytest.raises(TypeError, match="auto_wrap_policy takes"):
        fsdp_compat.plan(build(), auto_wrap_policy=policy)


def test_custom_policy_may_not_set_what_is_no_argument() -> None:
    policy = fsdp_compat.CustomPolicy(lambda module: isinstance(module, Block) and {"reshard": True})
    with pytest.raises(ValueError, match=r"reshard for the module 'blocks.0'"):
        fsdp_compat.plan(build(), auto_wrap_policy=policy)
