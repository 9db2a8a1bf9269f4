"""Gradients as data, in loops that people write: what a rank sees of them under FSDP1 and under the shim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from packaging.version import Version
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from fsdp_compat import ShardingStrategy
from fsdp_compat.torch_.versions import TORCH
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.gates import needs_torch
from tests.shim.models import build, loss_of
from tests.shim.training import POLICIES, Outcome, assert_same, clean, over_ranks, quiet_fsdp1, weights_here, weights_of

Grads = list[torch.Tensor]

#: Each rank sees its part, in another layout of shards than FSDP1's: added up over ranks both give the same.
A_PART: dict[str, Callable[[Grads], float]] = {
    "squares": lambda grads: sum(grad.pow(2).sum().item() for grad in grads),
    "products": lambda grads: float(sum((grad * grad).sum().item() for grad in grads)),
    "norms": lambda grads: sum(grad.norm(2).item() ** 2 for grad in grads),
    "norms of data": lambda grads: sum(grad.detach().data.norm().item() ** 2.0 for grad in grads),
    "added as tensors": lambda grads: sum((grad.pow(2).sum() for grad in grads), torch.zeros((), device=DEVICE)).item(),
    "sum": lambda grads: sum(grad.sum().item() for grad in grads),
}
#: Each rank sees the whole: added up over ranks it is too large by their number.
THE_WHOLE: dict[str, Callable[[Grads], float]] = {
    "norms as tensors": lambda grads: sum((grad.norm(2) ** 2 for grad in grads), torch.zeros((), device=DEVICE)).item(),
    "foreach": lambda grads: torch.stack(list(torch._foreach_norm(grads))).norm().item() ** 2,
    "stacked": lambda grads: torch.linalg.vector_norm(torch.stack([grad.norm() for grad in grads])).item() ** 2,
    "root of a sum": lambda grads: torch.stack([(grad * grad).sum() for grad in grads]).sum().sqrt().item() ** 2,
    "numel": lambda grads: float(sum(grad.numel() for grad in grads)),
}
#: Where a rank saw the whole, or its part alone, before that torch.
WHOLE_BEFORE = {"added as tensors": "2.12"}
PART_BEFORE = {"foreach": "2.10", "stacked": "2.10"}
#: Whether something is so in a rank's own part; since torch 2.14, in any or every rank's.
ASKED: dict[str, Callable[[Grads], bool]] = {
    "nan": lambda grads: any(bool(torch.isnan(grad).any().item()) for grad in grads),
    "finite": lambda grads: all(bool(grad.isfinite().all()) for grad in grads),
}
#: DTensor's any() and all() reduce over ranks since then.
ANSWERS_FOR_ALL = Version("2.14") <= TORCH
REFUSED: dict[str, Callable[[Grads], Any]] = {
    "allclose": lambda grads: [torch.allclose(grad, grad) for grad in grads],
    "numpy": lambda grads: [grad.cpu().numpy() for grad in grads],
    "tolist": lambda grads: [grad.flatten().tolist() for grad in grads],
    "all_reduce": lambda grads: [dist.all_reduce(grad) for grad in grads],
}


def gradients(face: Any, rank: int) -> tuple[nn.Module, Grads]:
    """Those of one backward; under FSDP1 without the ones of which this rank has nothing."""
    with quiet_fsdp1():
        model = face(build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, use_orig_params=True)
        loss_of(model, rank, 0).backward()
    grads = [param.grad for param in model.parameters() if param.grad is not None]
    return model, [grad for grad in grads if face is not FSDP1 or grad.numel()]


def seen(rank: int, world_size: int) -> None:
    """Worker: each way of reading gradients, on both sides."""
    (_, theirs), (_, ours) = gradients(FSDP1, rank), gradients(fsdp_compat.FSDP, rank)
    for ways, usual in ((A_PART, 1), (THE_WHOLE, world_size)):
        for name, way in ways.items():
            first, second = over_ranks(way(theirs)), over_ranks(way(ours))
            factor = world_size if name in WHOLE_BEFORE and Version(WHOLE_BEFORE[name]) > TORCH else usual
            if name in PART_BEFORE and Version(PART_BEFORE[name]) > TORCH:
                factor = 1
            # Sums over other shards are added up in another order.
            assert second == pytest.approx(factor * first, rel=1e-6), name
    for name, refused in REFUSED.items():
        with pytest.raises((RuntimeError, NotImplementedError, AssertionError)):
            refused(ours)
            pytest.fail(name)
    for bad in (False, True):
        if bad and rank == 0:
            ours[0].to_local().view(-1)[0] = theirs[0].view(-1)[0] = float("nan")  # type: ignore[attr-defined]
        for name, asked in ASKED.items():
            counts = [over_ranks(asked(grads)) for grads in (theirs, ours)]
            assert (0 < counts[0] < world_size) is bad, name
            of_all = {"nan": float(world_size), "finite": 0.0}[name] if bad and ANSWERS_FOR_ALL else counts[0]
            assert counts[1] == of_all, (name, counts, bad)


@pytest.mark.parametrize("world_size", [2, 3])
def test_what_a_rank_sees(pool: Pool, world_size: int) -> None:
    pool.run(seen, world_size)


def clamped(model: nn.Module, state: dict[Any, torch.Tensor]) -> None:
    for param in model.parameters():
        if param.grad is not None:
            param.grad.clamp_(-0.05, 0.05)
            param.data.add_(param.grad, alpha=-0.1)


def scaled(model: nn.Module, state: dict[Any, torch.Tensor]) -> None:
    grads = [param.grad for param in model.parameters() if param.grad is not None]
    torch._foreach_mul_(grads, 0.5)
    with torch.no_grad():
        for param in model.parameters():
            if param.grad is not None:
                param.sub_(0.1 * param.grad)


def signed(model: nn.Module, state: dict[Any, torch.Tensor]) -> None:
    with torch.no_grad():
        for param in model.parameters():
            if param.grad is not None:
                param.add_(param.grad.sign(), alpha=-0.01)


def with_momentum(model: nn.Module, state: dict[Any, torch.Tensor]) -> None:
    for name, param in model.named_parameters():
        if param.grad is not None:
            velocity = state.setdefault(clean(name), torch.zeros_like(param))
            velocity.mul_(0.9).add_(param.grad)
            param.data -= 0.1 * velocity


def averaged(model: nn.Module, state: dict[Any, torch.Tensor]) -> None:
    signed(model, state)
    with torch.no_grad():
        for name, param in model.named_parameters():
            average = state.setdefault(clean(name), param.detach().clone())
            average.lerp_(param, 0.5)
            param.copy_(average)


DATA_IN_PLACE = "param.data -= x, which fsdp_compat cannot distinguish from param.data = y on older torch"
STEPS_BY_HAND = {function.__name__: function for function in (clamped, scaled, signed, with_momentum, averaged)}


def trained(rank: int, world_size: int, way: str, strategy: str) -> tuple[Outcome, Outcome]:
    """Worker: four steps without an optimizer, on both sides."""
    outcomes = []
    for face in (FSDP1, fsdp_compat.FSDP):
        with quiet_fsdp1():
            model: Any = face(
                build(),
                sharding_strategy=ShardingStrategy[strategy],
                auto_wrap_policy=POLICIES["transformer"](),
                device_id=DEVICE,
                use_orig_params=True,
            )
            state: dict[Any, torch.Tensor] = {}
            losses = []
            for step in range(4):
                model.zero_grad()
                loss = loss_of(model, rank, step)
                loss.backward()
                STEPS_BY_HAND[way](model, state)
                losses.append(loss.item())
            if face is FSDP1:
                with FSDP1.summon_full_params(model):
                    weights = weights_here(model)
            else:
                weights = weights_of(model)
        outcomes.append(Outcome(losses, [], weights))
    return outcomes[0], outcomes[1]


@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, marks=needs_torch("2.10", DATA_IN_PLACE) if way == "with_momentum" else ())
        for way in STEPS_BY_HAND
    ],
)
def test_steps_by_hand_train_as_fsdp1(pool: Pool, way: str, strategy: str) -> None:
    # On two ranks: gloo adds up three in an order that depends on where an element is in the flat buffer.
    for theirs, ours in pool.run(trained, 2, way, strategy):
        assert_same(theirs, ours)
