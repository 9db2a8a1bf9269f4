"""clip_grad_norm_ and no_sync, against real FSDP1 and against an unsharded model that sees every rank's data."""

from __future__ import annotations

import contextlib
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial
from torch.nn.parallel import DistributedDataParallel

import fsdp_compat
from fsdp_compat import MixedPrecision, ShardingStrategy, clip_grad_norm_, no_sync
from tests.device import DEVICE, ranks
from tests.pool import Pool
from tests.shim.gates import needs_torch, older_than_torch
from tests.shim.models import Block, Model, build, loss_of
from tests.shim.training import POLICIES, Case, assert_same, both, quiet_fsdp1, whole


def sharded(**keywords: Any) -> Model:
    return fsdp_compat.shard(
        build(), **{"auto_wrap_policy": POLICIES["transformer"](), "device_id": DEVICE, **keywords}
    )


def averaged(world_size: int, step: int = 0) -> Model:
    """An unsharded model with the gradients that data-parallel training gives."""
    model = build()
    for rank in range(world_size):
        (loss_of(model, rank, step) / world_size).backward()
    return model


def clipped(rank: int, world_size: int, strategy: str, norm_type: float, max_norm: float) -> None:
    """Worker: norm and clipped gradients as those of an unsharded model."""
    arguments: dict[str, Any] = {"sharding_strategy": ShardingStrategy[strategy]}
    if strategy == "HYBRID_SHARD":
        arguments["device_mesh"] = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("a", "b"))
    model, reference = sharded(**arguments), averaged(world_size)
    loss_of(model, rank, 0).backward()
    expected = nn.utils.clip_grad_norm_(reference.parameters(), max_norm, norm_type)
    norm = clip_grad_norm_(model, max_norm, norm_type)
    assert type(norm) is torch.Tensor
    torch.testing.assert_close(norm, expected, rtol=1e-5, atol=0)
    gradients = whole({name: param.grad for name, param in model.named_parameters()})
    for name, param in reference.named_parameters():
        torch.testing.assert_close(gradients[name], param.grad.cpu(), rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("max_norm", [1e-2, 1e3])
@pytest.mark.parametrize("norm_type", [2.0, 1.0, 3.5, math.inf])
def test_norm_and_gradients_are_those_of_an_unsharded_model(pool: Pool, norm_type: float, max_norm: float) -> None:
    pool.run(clipped, ranks(2), "FULL_SHARD", norm_type, max_norm)


@pytest.mark.parametrize(("strategy", "world_size"), [("NO_SHARD", 2), ("SHARD_GRAD_OP", 3), ("HYBRID_SHARD", 4)])
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_replicas_count_once(pool: Pool, strategy: str, world_size: int, norm_type: float) -> None:
    pool.run(clipped, world_size, strategy, norm_type, 1e-2)


def test_training_with_active_clipping_follows_fsdp1(pool: Pool) -> None:
    for theirs, ours in pool.run(both, ranks(2), Case(max_norm=0.1)):
        assert_same(theirs, ours, rounding=1e-5)


def over_several(rank: int, world_size: int, side: str, norm_type: float) -> list[float]:
    """Worker: the norms before and after clipping of a model of which one unit is sharded over pairs of ranks."""
    pairs = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("between", "within"))["within"]
    torch.manual_seed(rank // 2)
    own = nn.Linear(6, 6)
    torch.manual_seed(2)
    model = nn.Sequential(own, nn.Linear(6, 3)).to(DEVICE)
    if side == "native":
        fully_shard(model[0], mesh=pairs)
        fully_shard(model, mesh=init_device_mesh(DEVICE.type, (world_size,)))
    else:
        wrap = {"fsdp1": FSDP1, "shim": fsdp_compat.FSDP}[side]
        with quiet_fsdp1():
            model[0] = wrap(model[0], device_mesh=pairs, device_id=DEVICE, use_orig_params=True)
            model = wrap(model, device_id=DEVICE, use_orig_params=True)
    model(torch.full((4, 6), float(rank + 1), device=DEVICE)).square().sum().backward()
    clip = clip_grad_norm_ if side == "native" else type(model).clip_grad_norm_
    return [clip(model, 1.0, norm_type).item() for _ in range(2)]


@pytest.mark.parametrize("norm_type", [2.0, math.inf])
@pytest.mark.parametrize("side", ["native", "shim"])
def test_shards_over_several_meshes_count_as_in_fsdp1(pool: Pool, side: str, norm_type: float) -> None:
    theirs = pool.run(over_several, 4, "fsdp1", norm_type)
    assert theirs[0][0] > 1.0
    assert theirs[0] == theirs[3]
    for first, second in zip(theirs, pool.run(over_several, 4, side, norm_type), strict=True):
        assert second == pytest.approx(first, rel=1e-5)


def with_ignored(rank: int, world_size: int, side: str, norm_type: float) -> tuple[float, list[torch.Tensor]]:
    """Worker: clip a model with parameters that are not sharded and whose gradients differ between ranks."""
    model = build()
    arguments = {"auto_wrap_policy": POLICIES["transformer"](), "device_id": DEVICE, "ignored_modules": [model.head]}
    if side == "fsdp1":
        with quiet_fsdp1():
            wrapped = FSDP1(model, use_orig_params=True, **arguments)
        loss_of(wrapped, rank, 0).backward()
        norm = wrapped.clip_grad_norm_(0.05, norm_type)
    else:
        loss_of(fsdp_compat.shard(model, **arguments), rank, 0).backward()
        norm = clip_grad_norm_(model, 0.05, norm_type)
    return norm.item(), [model.head.weight.grad]


@pytest.mark.parametrize("norm_type", [2.0, 1.0, math.inf])
def test_ignored_parameters_count_as_in_fsdp1(pool: Pool, norm_type: float) -> None:
    theirs = pool.run(with_ignored, ranks(2), "fsdp1", norm_type)
    for first, second in zip(theirs, pool.run(with_ignored, ranks(2), "compat", norm_type), strict=True):
        torch.testing.assert_close(second, first, rtol=1e-6, atol=1e-9)


def norm_details(rank: int, world_size: int) -> None:
    """Worker: dtype of the norm, gradients that only some ranks hold, none at all, and a part of a model."""
    model = fsdp_compat.shard(build().bfloat16(), device_id=DEVICE)
    loss_of(model, rank, 0).backward()
    assert clip_grad_norm_(model, 1.0).dtype == torch.bfloat16
    double = fsdp_compat.shard(nn.Linear(3, 3).double(), device_id=DEVICE)
    double(torch.ones(1, 3, dtype=torch.float64, device=DEVICE)).sum().backward()
    expected = torch.tensor(12.0, dtype=torch.float64, device=DEVICE).sqrt()
    torch.testing.assert_close(clip_grad_norm_(double, 0.1), expected)
    for param in model.parameters():
        param.grad = None
    with pytest.warns(UserWarning, match=r"Called FSDP.clip_grad_norm_\(\) on rank \d with no gradients"):
        assert clip_grad_norm_(model, 1.0).item() == 0.0
    model = sharded()
    loss_of(model, rank, 0).backward()
    for param in model.parameters():
        param.grad = param.grad if param is model.norm.weight and rank == 1 else None
    expected = model.norm.weight.grad.to_local().norm() if rank == 1 else torch.zeros((), device=DEVICE)
    dist.broadcast(expected, src=1)
    warned = contextlib.nullcontext() if rank == 1 else pytest.warns(UserWarning, match="with no gradients")
    with warned:
        torch.testing.assert_close(clip_grad_norm_(model, 1.0).float(), expected)
    with pytest.raises(RuntimeError, match=r"should only be called on the root FSDP instance"):
        clip_grad_norm_(model.blocks[0], 1.0)
    with (
        pytest.raises(RuntimeError, match=r"`no_sync\(\)` on inner FSDP instances is not supported"),
        no_sync(model.blocks[0]),
    ):
        pass
    with pytest.raises(ValueError, match="norm_type must be positive"):
        clip_grad_norm_(model, 1.0, 0.0)


def test_norm_details(pool: Pool) -> None:
    pool.run(norm_details, 2)


def flags(model: nn.Module) -> list[tuple[bool, bool]]:
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in fsdp_compat.fsdp_modules(model)]
    return [(group.reduce_grads, group.all_reduce_grads) for group in groups]


def accumulated(rank: int, world_size: int) -> None:
    """Worker: what no_sync leaves behind, nested, after errors, and with flags that were set before."""
    model = sharded()
    with no_sync(model):
        with no_sync(model):
            loss_of(model, rank, 0).backward()
        assert flags(model) == [(False, False)] * 4
        assert all(param.grad.placements == (Partial("avg"),) for param in model.parameters())
    assert flags(model) == [(True, True)] * 4
    loss_of(model, rank, 1).backward()
    first, second = averaged(world_size, 0), averaged(world_size, 1)
    gradients = whole({name: param.grad for name, param in model.named_parameters()})
    for name, grad in gradients.items():
        both_steps = first.get_parameter(name).grad + second.get_parameter(name).grad
        torch.testing.assert_close(grad, both_steps.cpu(), rtol=1e-5, atol=1e-7)
    model.blocks[1].set_requires_gradient_sync(False)
    model.blocks[2].set_requires_all_reduce(False)
    before = flags(model)
    with contextlib.suppress(KeyError), no_sync(model):
        raise KeyError
    assert flags(model) == before
    assert len(set(before)) == 3


def test_no_sync_nests_and_restores(pool: Pool) -> None:
    pool.run(accumulated, ranks(2))


def around_other_modules(rank: int, world_size: int) -> None:
    """Worker: DDP keeps its own no_sync; a plain module around FSDP2 units is served; a plain one is refused."""
    ddp = DistributedDataParallel(nn.Linear(2, 2).to(DEVICE))
    with no_sync(ddp):
        assert not ddp.require_backward_grad_sync
    assert ddp.require_backward_grad_sync
    holder = nn.Sequential(Block(3, 5), Block(3, 5)).to(DEVICE)
    for block in holder:
        fully_shard(block, mesh=init_device_mesh(DEVICE.type, (world_size,)))
    with no_sync(holder):
        holder(torch.ones(2, 3, device=DEVICE)).sum().backward()
    assert all(param.grad.placements == (Partial("avg"),) for param in holder.parameters())
    holder(torch.ones(2, 3, device=DEVICE)).sum().backward()
    assert all(isinstance(param.grad, DTensor) for param in holder.parameters())
    with pytest.raises(TypeError, match="no_sync needs a module sharded with FSDP2"), no_sync(nn.Linear(1, 1)):
        pass


def test_no_sync_on_what_fsdp_compat_did_not_shard(pool: Pool) -> None:
    pool.run(around_other_modules, ranks(2))


def waiting(rank: int, world_size: int, implementation: str, strategy: str, dtype: torch.dtype | None) -> list[Any]:
    """Worker: what ``.grad`` is while gradients wait, what zeroing does to them, and where training leads."""
    wrap: Any = {"fsdp1": FSDP1, "fsdp_compat": fsdp_compat.FSDP}[implementation]
    with quiet_fsdp1():
        model = wrap(
            build(),
            auto_wrap_policy=POLICIES["transformer"](),
            sharding_strategy=ShardingStrategy[strategy],
            mixed_precision=MixedPrecision(param_dtype=dtype, reduce_dtype=torch.float32) if dtype else None,
            use_orig_params=True,
            device_id=DEVICE,
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[Any] = []

    def look() -> None:
        for param in model.parameters():
            local = param.grad.to_local() if isinstance(param.grad, DTensor) else param.grad
            seen.append(None if local is None else (local.dtype, local.detach().cpu().float().clone()))

    with model.no_sync():
        loss_of(model, rank, 0).backward()
        look()
        loss_of(model, rank, 1).backward()
        look()
        optimizer.zero_grad()
        loss_of(model, rank, 2).backward()
    look()
    loss_of(model, rank, 3).backward()
    optimizer.step()
    seen.append(loss_of(model, rank, 4).item())
    # FSDP1 keeps a gradient that was reduced before out of reach of zero_grad() while others wait.
    optimizer.zero_grad()
    with model.no_sync():
        loss_of(model, rank, 5).backward()
        optimizer.zero_grad(set_to_none=False)
    model.zero_grad()
    loss_of(model, rank, 6).backward()
    optimizer.step()
    # A reduced gradient from before waits beside the unreduced one.
    with model.no_sync():
        loss_of(model, rank, 7).backward()
    loss_of(model, rank, 8).backward()
    optimizer.step()
    seen.append(loss_of(model, rank, 9).item())
    return seen


@pytest.mark.parametrize(
    "dtype",
    [
        None,
        pytest.param(
            torch.bfloat16,
            marks=[
                needs_torch("2.10", "Tensor.grad_dtype"),
                older_than_torch("2.15", "which accumulates in the reduction dtype"),
            ],
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_gradients_wait_in_sight_as_in_fsdp1(pool: Pool, strategy: str, dtype: torch.dtype | None) -> None:
    theirs, ours = (pool.run(waiting, ranks(2), side, strategy, dtype) for side in ("fsdp1", "fsdp_compat"))
    for first, second in zip(theirs, ours, strict=True):
        for one, other in zip(first, second, strict=True):
            if isinstance(one, float) or one is None or other is None:
                assert other == one
            else:
                assert other[0] == one[0]
                assert torch.equal(other[1], one[1])
