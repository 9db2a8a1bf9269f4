"""FSDP2's all-gather extension: a parameter that says itself what is gathered of it keeps doing so under the shim."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from fsdp_compat import FSDP, MixedPrecision, ModuleWrapPolicy, fsdp_modules
from fsdp_compat.step import reduction
from tests.device import DEVICE
from tests.pool import Pool

# What fully_shard does to a parameter before it is a shard; all else computes on plain tensors.
_KEEPS_CLASS = {
    torch.ops.aten.detach.default,
    torch.ops.aten.clone.default,
    torch.ops.aten._to_copy.default,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.new_zeros.default,
    torch.ops.aten.split.Tensor,
    torch.ops.aten.slice.Tensor,
    torch.ops.aten.view.default,
    torch.ops.aten.as_strided.default,
    torch.ops.aten.copy_.default,
}


class LowPrecisionGather(torch.Tensor):
    """Holds fp32, gathers bf16. ``calls`` counts the two hooks in this process."""

    calls = {"pre": 0, "post": 0}

    def __new__(cls, inner: torch.Tensor) -> LowPrecisionGather:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=inner.device,
            requires_grad=inner.requires_grad,
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"LowPrecisionGather({self.inner})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: None, size: Any, stride: Any) -> torch.Tensor:
        return LowPrecisionGather(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(cls, lambda one: one.inner, (args, kwargs or {}))
        result = func(*args, **kwargs)
        return pytree.tree_map_only(torch.Tensor, cls, result) if func in _KEEPS_CLASS else result

    def fsdp_pre_all_gather(
        self, mesh: Any, outer_size: Any, outer_stride: Any, module: nn.Module, policy: MixedPrecisionPolicy
    ) -> tuple[tuple[torch.Tensor, ...], None]:
        assert isinstance(module, nn.Linear)
        LowPrecisionGather.calls["pre"] += 1
        return (self.inner.to(torch.bfloat16),), None

    def fsdp_post_all_gather(
        self, gathered: tuple[torch.Tensor, ...], metadata: None, dtype: torch.dtype, *, out: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]] | None:
        LowPrecisionGather.calls["post"] += 1
        (whole,) = gathered
        assert whole.dtype == dtype == torch.bfloat16
        return None if out is not None else (whole, (whole,))


def build(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 10), nn.Tanh(), nn.Linear(10, 4))
    for part in model:
        if isinstance(part, nn.Linear):
            part.weight = nn.Parameter(LowPrecisionGather(part.weight.detach()))
    return model


def by_hand(world_size: int) -> nn.Module:
    mesh = init_device_mesh(DEVICE.type, (world_size,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    model = build(0)
    for part in model:
        if isinstance(part, nn.Linear):
            fully_shard(part, mesh=mesh, mp_policy=policy)
    root = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fully_shard(model, mesh=mesh, mp_policy=root)
    if not reduction.averages(mesh):
        for unit in fsdp_modules(model):
            reduction.divide_explicitly(unit)
    return model


def by_shim(rank: int, sync: bool) -> nn.Module:
    return FSDP(
        build(rank if sync else 0),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        sync_module_states=sync,
        device_id=DEVICE,
    )


def train(model: nn.Module, rank: int) -> tuple[list[float], dict[str, torch.Tensor], dict[str, int]]:
    LowPrecisionGather.calls = {"pre": 0, "post": 0}
    for name, param in model.named_parameters():
        assert isinstance(param, DTensor)
        assert isinstance(param.to_local(), LowPrecisionGather) == name.endswith("weight"), name
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        data = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * rank + step)).to(DEVICE)
        loss = model(data).float().square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = {name: param.to_local() for name, param in model.named_parameters()}
    plain = {name: one.inner if isinstance(one, LowPrecisionGather) else one for name, one in weights.items()}
    return losses, {name: one.detach().clone() for name, one in plain.items()}, dict(LowPrecisionGather.calls)


def both(rank: int, world_size: int, sync: bool) -> None:
    theirs, ours = train(by_hand(world_size), rank), train(by_shim(rank, sync), rank)
    assert ours[0] == theirs[0]
    assert ours[1].keys() == theirs[1].keys()
    for name, weight in ours[1].items():
        assert torch.equal(weight, theirs[1][name]), name
    assert ours[2] == theirs[2]
    # Three units, each gathered for three forwards and three backwards.
    assert ours[2] == {"pre": 18, "post": 18}


@pytest.mark.parametrize("sync", [False, True])
def test_a_parameter_gathers_in_its_own_way(pool: Pool, sync: bool) -> None:
    pool.run(both, 2, sync)
