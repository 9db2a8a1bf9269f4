"""register_comm_hook: FSDP1's own hooks and those of users, against real FSDP1 where it runs them on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from fsdp_compat import MixedPrecision, ShardingStrategy
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.gates import needs_torch
from tests.shim.models import Model, build, loss_of
from tests.shim.training import POLICIES, quiet_fsdp1, weights_here, weights_of

CALLS_HOOKS = needs_torch("2.9", "FSDPModule.set_custom_reduce_scatter, which FSDP2 needs to call a communication hook")
DTYPES = {torch.float16: default_hooks.fp16_compress_hook, torch.bfloat16: default_hooks.bf16_compress_hook}


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def wrapped(implementation: str, model: Model | None = None, **keywords: Any) -> Any:
    keywords = {"auto_wrap_policy": POLICIES["transformer"](), "device_id": DEVICE, "use_orig_params": True, **keywords}
    with quiet_fsdp1():
        return {"fsdp1": FSDP1, "fsdp_compat": fsdp_compat.FSDP}[implementation](model or build(), **keywords)


def trained(model: Any, rank: int, steps: int = 2) -> tuple[list[float], dict[str, torch.Tensor]]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, rank, step)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    if not isinstance(model, FSDP1):
        return losses, weights_of(model)
    with FSDP1.summon_full_params(model):
        return losses, weights_here(model)


def assert_equal(
    first: tuple[list[float], dict[str, torch.Tensor]], second: tuple[list[float], dict[str, torch.Tensor]]
) -> None:
    assert first[0] == second[0]
    assert first[1].keys() == second[1].keys()
    for name, weight in first[1].items():
        assert torch.equal(weight, second[1][name]), name


def compressed(rank: int, world_size: int, strategy: str, dtype: torch.dtype, late: bool) -> None:
    """Worker: a compressing hook is FSDP1's reduction in that dtype, which differs from the one without a hook."""
    keywords = {"sharding_strategy": ShardingStrategy[strategy]}
    model = wrapped("fsdp_compat", **keywords)
    if late:
        loss_of(model, rank, 9).backward()
        model.zero_grad()
    assert model.register_comm_hook(default_hooks.LowPrecisionState(world()), DTYPES[dtype]) is None
    found = trained(model, rank)
    assert all(param.grad.dtype == torch.float32 for param in model.parameters())
    assert_equal(found, trained(wrapped("fsdp1", mixed_precision=MixedPrecision(reduce_dtype=dtype), **keywords), rank))
    plain = trained(wrapped("fsdp_compat", **keywords), rank)
    assert not torch.equal(plain[1]["head.weight"], found[1]["head.weight"])


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "NO_SHARD"])
def test_compressing_hooks_set_the_reduce_dtype(pool: Pool, strategy: str, dtype: torch.dtype, late: bool) -> None:
    pool.run(compressed, 2, strategy, dtype, late)


def with_default_hook(rank: int, world_size: int, strategy: str, hook: Callable[..., Any]) -> None:
    results = []
    for implementation in ("fsdp1", "fsdp_compat"):
        model = wrapped(implementation, sharding_strategy=ShardingStrategy[strategy])
        model.register_comm_hook(default_hooks.DefaultState(world()), hook)
        results.append(trained(model, rank))
    assert_equal(*results)


@pytest.mark.parametrize(
    ("strategy", "hook"),
    [
        ("FULL_SHARD", default_hooks.reduce_scatter_hook),
        ("SHARD_GRAD_OP", default_hooks.reduce_scatter_hook),
        ("NO_SHARD", default_hooks.allreduce_hook),
    ],
)
def test_the_default_hooks_change_nothing(pool: Pool, strategy: str, hook: Callable[..., Any]) -> None:
    pool.run(with_default_hook, 2, strategy, hook)


def rounded(state: dict[str, Any], grad: torch.Tensor, output: torch.Tensor) -> None:
    """A hook of a user: adds up coarse gradients without averaging them."""
    grad.mul_(64).round_().div_(64)
    dist.reduce_scatter_tensor(output, grad, group=state["group"])
    state["calls"] += 1
    state["shapes"].append((tuple(grad.shape), tuple(output.shape)))


def with_own_hook(rank: int, world_size: int, dtype: torch.dtype | None) -> None:
    """Worker: a user's hook divides as it sees fit, in the reduce dtype, once per unit and backward."""
    results, calls = [], []
    for implementation in ("fsdp1", "fsdp_compat"):
        state: dict[str, Any] = {"group": world(), "calls": 0, "shapes": []}
        precision = MixedPrecision(reduce_dtype=dtype) if dtype is not None else None
        model = wrapped(implementation, mixed_precision=precision)
        model.register_comm_hook(state, rounded)
        results.append(trained(model, rank))
        calls.append(state["calls"])
        for whole, part in state["shapes"]:
            assert len(whole) == 1
            assert (whole[0],) == (part[0] * world_size,)
    assert_equal(*results)
    assert calls == [8, 8]


@CALLS_HOOKS
@pytest.mark.parametrize("dtype", [None, torch.float16], ids=str)
def test_hooks_of_users_reduce_as_under_fsdp1(pool: Pool, dtype: torch.dtype | None) -> None:
    pool.run(with_own_hook, 2, dtype)


def with_other_factors(rank: int, world_size: int) -> None:
    """Worker: a state that divides otherwise, or sums over other ranks, is honoured instead of replaced."""
    results = []
    for implementation in ("fsdp1", "fsdp_compat"):
        state = default_hooks.DefaultState(world())
        state.gradient_postdivide_factor = 8.0
        model = wrapped(implementation)
        model.register_comm_hook(state, default_hooks.reduce_scatter_hook)
        results.append(trained(model, rank))
    assert_equal(*results)
    plain = trained(wrapped("fsdp_compat"), rank)
    assert plain[0] != results[1][0]


@CALLS_HOOKS
def test_a_state_with_other_factors_is_honoured(pool: Pool) -> None:
    pool.run(with_other_factors, 2)


def misused(rank: int, world_size: int, implementation: str) -> None:
    """Worker: what both implementations refuse, in FSDP1's words."""
    model = wrapped(implementation)
    with pytest.raises(AssertionError, match=r"^register_comm_hook can only be called on a root instance.$"):
        model.check_is_root() and model.blocks[0].register_comm_hook(None, rounded)
    with pytest.raises(ValueError, match=r"^The communication hook must be callable but got 3"):
        model.register_comm_hook(None, 3)
    model.register_comm_hook("state", rounded)
    with pytest.raises(AssertionError, match=r"^A communication hook is already registered"):
        model.register_comm_hook("state", rounded)
    hybrid = wrapped(
        implementation,
        sharding_strategy=ShardingStrategy.HYBRID_SHARD,
        device_mesh=init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("replicate", "shard")),
    )
    with pytest.raises(AssertionError, match=r"^Communication hook is not supported for hybrid strategies: "):
        hybrid.register_comm_hook("state", rounded)


@pytest.mark.parametrize("implementation", ["fsdp1", pytest.param("fsdp_compat", marks=CALLS_HOOKS)])
def test_misuse_is_refused(pool: Pool, implementation: str) -> None:
    pool.run(misused, 4, implementation)


def coarse(state: dict[str, Any], grad: torch.Tensor) -> None:
    """A hook of a user for gradients that are not sharded."""
    grad.mul_(64).round_().div_(64)
    dist.all_reduce(grad, group=state["group"])
    state["calls"] += 1


def unsharded(rank: int, world_size: int, strategy: str) -> None:
    """Worker: with NO_SHARD, and on a single rank, a user's hook gets whole gradients to change in place."""
    results, calls = [], []
    for implementation in ("fsdp1", "fsdp_compat"):
        state: dict[str, Any] = {"group": world(), "calls": 0}
        model = wrapped(implementation, sharding_strategy=ShardingStrategy[strategy])
        model.register_comm_hook(state, coarse)
        results.append(trained(model, rank))
        calls.append(state["calls"])
    assert_equal(*results)
    assert calls == [8, 8]


@CALLS_HOOKS
@pytest.mark.parametrize(("strategy", "world_size"), [("NO_SHARD", 2), ("FULL_SHARD", 1)])
def test_hooks_reduce_what_is_not_sharded(pool: Pool, strategy: str, world_size: int) -> None:
    pool.run(unsharded, world_size, strategy)


def plain_module(rank: int, world_size: int) -> None:
    model = wrapped("fsdp_compat")
    fsdp_compat.FSDP.register_comm_hook(nn.Sequential(model), "state", rounded)
    assert model._comm_hook is rounded


@CALLS_HOOKS
def test_units_below_a_plain_module_are_served_by_the_static(pool: Pool) -> None:
    pool.run(plain_module, 2)
