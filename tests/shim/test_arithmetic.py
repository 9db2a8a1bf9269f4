"""Arithmetic on sharded parameters and gradients by hand: what differs from FSDP1, as docs/shim.md says it does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from packaging.version import Version
from torch.distributed.tensor import DTensor

from fsdp_compat import FSDP
from fsdp_compat.torch_.versions import TORCH
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.models import Model, build, loss_of
from tests.shim.training import POLICIES, over_ranks


def trained(rank: int) -> Model:
    model = FSDP(build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, use_orig_params=True)
    loss_of(model, rank, 0).backward()
    return model  # type: ignore[return-value]


def local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def counts_and_norms(rank: int, world_size: int) -> None:
    model, elements = trained(rank), sum(param.numel() for param in build().parameters())
    assert sum(param.numel() for param in model.parameters()) == elements
    assert over_ranks(sum(param.numel() for param in model.parameters())) == world_size * elements
    assert over_ranks(sum(local(param).numel() for param in model.parameters())) == elements
    expected = model.clip_grad_norm_(1e9).item()
    parts = [local(param.grad).double().square().sum().item() for param in model.parameters()]
    assert math.isclose(math.sqrt(over_ranks(sum(parts))), expected, rel_tol=1e-6)
    items = [param.grad.pow(2).sum().item() for param in model.parameters()]  # type: ignore[union-attr]
    assert math.isclose(math.sqrt(over_ranks(sum(items))), expected, rel_tol=1e-6)
    whole = torch.nn.utils.get_total_norm([param.grad for param in model.parameters() if param.grad is not None])
    assert isinstance(whole, DTensor)
    assert math.isclose(whole.full_tensor().item(), expected, rel_tol=1e-6)
    summed: Any = 0.0
    for param in model.parameters():
        summed = summed + param.grad.pow(2).sum()  # type: ignore[union-attr]
    # The sum over this rank's shard becomes the sum over all ranks, so that reducing it again would count it twice.
    assert math.isclose(math.sqrt(summed.full_tensor().item()), expected, rel_tol=1e-6)


def test_counts_and_norms_are_of_the_whole(pool: Pool) -> None:
    pool.run(counts_and_norms, 2)


#: Before, a tensor that a DTensor of no dimension is added to takes this rank's part.
REFUSES_MIXED_IN_PLACE = Version("2.10") <= TORCH
FAILING: dict[str, Callable[[torch.Tensor], Any]] = {
    "numpy": lambda grad: grad.numpy(),
    "tolist": lambda grad: grad.tolist(),
    "all_reduce": lambda grad: dist.all_reduce(grad.pow(2).sum()),
    "broadcast": lambda grad: dist.broadcast(grad, 0),
    "in place": lambda grad: torch.zeros((), device=DEVICE).add_(grad.pow(2).sum()),
}


def failing(rank: int, world_size: int) -> None:
    grad = trained(rank).norm.weight.grad
    assert grad is not None
    for name, operation in FAILING.items():
        if name == "in place" and not REFUSES_MIXED_IN_PLACE:
            continue
        with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
            operation(grad)


def test_what_a_dtensor_does_not_do_is_an_error(pool: Pool) -> None:
    pool.run(failing, 2)
