"""What a user gets wrong first: each message names FSDP, what was given, and what to pass instead."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import fsdp_compat
from fsdp_compat import FSDP, CPUOffload, CustomPolicy, MixedPrecision, ModuleWrapPolicy, ShardingStrategy, plan
from tests.device import DEVICE, KIND
from tests.pool import Pool
from tests.shim.models import Block, build, loss_of
from tests.shim.training import POLICIES

WRONG: dict[str, tuple[type[Exception], str, dict[str, Any]]] = {
    "offload": (
        TypeError,
        r"cpu_offload takes a CPUOffload .*CPUOffload\(offload_params=True\), not True",
        {"cpu_offload": True},
    ),
    "strategy": (TypeError, "sharding_strategy takes a ShardingStrategy", {"sharding_strategy": "FULL_SHARD"}),
    "misspelt": (
        TypeError,
        r"FullyShardedDataParallel\(\) got an unexpected keyword argument 'sharding_stratgy'. Did you mean "
        "'sharding_strategy'",
        {"sharding_stratgy": ShardingStrategy.FULL_SHARD},
    ),
    "unknown": (TypeError, r"FullyShardedDataParallel\(\) got an unexpected .* 'zzz': it takes module", {"zzz": 1}),
}


def refused(rank: int, world_size: int) -> None:
    for error, message, arguments in WRONG.values():
        with pytest.raises(error, match=message):
            FSDP(build(), **arguments)
    with pytest.raises(TypeError, match="FSDP takes a module, not list"):
        FSDP([build()])  # type: ignore[arg-type]
    if KIND == "cpu" and not torch.accelerator.is_available():
        with pytest.raises(RuntimeError, match=r"device_id=0.*no accelerator"):
            FSDP(build(), device_id=0)


def test_wrong_arguments_are_refused_by_name(pool: Pool) -> None:
    pool.run(refused, 1)


def test_a_report_takes_a_module_and_an_optimizer() -> None:
    with pytest.raises(TypeError, match="takes an optimizer second, or nothing, not 'adam'"):
        fsdp_compat.memory_report(build(), "adam")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a module first"):
        fsdp_compat.memory_report([build()])  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["8", 8.0, True])
def test_a_plan_takes_a_number_of_ranks(given: Any) -> None:
    with pytest.raises(TypeError, match="world_size is the number of ranks, an int"):
        plan(build(), world_size=given)


MATCHLESS: dict[str, Any] = {
    "classes": ModuleWrapPolicy({nn.Conv2d}),
    "transformer": functools.partial(fsdp_compat.transformer_auto_wrap_policy, transformer_layer_cls={nn.Conv2d}),
    "lambda": functools.partial(fsdp_compat.lambda_auto_wrap_policy, lambda_fn=lambda module: False),
    "custom": CustomPolicy(lambda module: False),
}


@pytest.mark.parametrize("policy", MATCHLESS)
def test_a_policy_that_matches_nothing_is_warned_of(policy: str) -> None:
    with pytest.warns(UserWarning, match="auto_wrap_policy.* matches no module in Model"):
        plan(build(), auto_wrap_policy=MATCHLESS[policy], world_size=2)


def test_a_policy_by_size_or_for_the_root_may_match_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        size = functools.partial(fsdp_compat.size_based_auto_wrap_policy, min_num_params=10**9)
        plan(build(), auto_wrap_policy=size, world_size=2)
        plan(Block(3, 5), auto_wrap_policy=ModuleWrapPolicy({Block}), world_size=2)


class Normed(nn.Sequential):
    pass


def test_batch_norm_beside_mixed_precision_is_warned_of() -> None:
    model = Normed(nn.Linear(3, 3), nn.BatchNorm1d(3))
    arguments: Any = {"auto_wrap_policy": ModuleWrapPolicy({nn.Linear}), "world_size": 2}
    with pytest.warns(UserWarning, match="Both mixed precision and an auto_wrap_policy were specified.*BatchNorm1d"):
        plan(model, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16), **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan(model, **arguments)


def test_a_container_is_warned_of_as_by_fsdp1_and_refused_with_parameters_of_its_own() -> None:
    model = nn.ModuleList([Block(3, 5), nn.Linear(3, 3)])
    with pytest.warns(UserWarning, match="will not all-gather parameters for containers that do not implement forward"):
        plan(model, auto_wrap_policy=ModuleWrapPolicy({Block, nn.Linear}), world_size=2)
    with pytest.raises(ValueError, match=r"ModuleList has no forward, .* \(1\.weight, 1\.bias\)"):
        plan(model, auto_wrap_policy=ModuleWrapPolicy({Block}), world_size=2)


def assigned(rank: int, world_size: int) -> None:
    """Worker: an assigned ``.data`` is found at the next forward or step; what writes values or moves them is not."""
    for change in (lambda p: p.data.mul(0.5), lambda p: p.data.to(torch.bfloat16)):
        for trained in (False, True):
            model = FSDP(build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, use_orig_params=True)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            if trained:
                loss_of(model, rank, 0).backward()
            weight = model.blocks[0].up.weight
            weight.data = change(weight)
            with pytest.raises(RuntimeError, match=r"\.data of Linear\.weight was assigned after sharding"):
                loss_of(model, rank, 1)
            with pytest.raises(RuntimeError, match=r"\.data of Linear\.weight was assigned after sharding"):
                optimizer.step()
    model = FSDP(build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, use_orig_params=True)
    for move in (nn.Module.double, lambda module: module.to(DEVICE)):
        move(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torch.no_grad():
            for param in model.parameters():
                param.copy_(param * 0.5)
                param.data.mul_(0.5)
        loss_of(model, rank, 0).backward()
        optimizer.step()
    model.load_state_dict(model.state_dict())
    model.load_state_dict(model.state_dict(), assign=True)
    loss_of(model, rank, 0).backward()


def test_assigned_data_is_refused_at_once(pool: Pool) -> None:
    pool.run(assigned, 2)


def offloaded(rank: int, world_size: int) -> None:
    FSDP(build(), device_id=DEVICE, cpu_offload=CPUOffload(offload_params=True))


def test_offload_by_its_class_is_taken(pool: Pool) -> None:
    pool.run(offloaded, 1)
