"""Gradients of an activation that several units read, added up in FSDP1's order: bit for bit, not to the last digit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

from fsdp_compat import FSDP, ModuleWrapPolicy, ShardingStrategy, fsdp_modules
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.training import quiet_fsdp1, weights_here

WIDTH = 16


class Gated(nn.Module):
    """Reads its input twice, and a second one where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        y = torch.sigmoid(self.gate(x)) * self.up(x)
        return y if other is None else y + torch.tanh(self.gate(other)) * other


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(Gated() for _ in range(3))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        weights = self.router(h).softmax(-1)
        return h + sum(weights[..., i, None] * expert(h) for i, expert in enumerate(self.experts))


class AroundSkip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gated = Gated()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h * h + self.gated(h)


class Attended(nn.Module):
    """One tensor is the query, the key and the value of a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.gated, self.attention = Gated(), nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + self.attention(h, h, h, need_weights=False)[0]


class Decoded(nn.Module):
    """Each layer reads the same memory more than once."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Gated() for _ in range(3))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        memory = h
        for layer in self.layers:
            h = layer(h, other=memory)
        return h


class Rolled(nn.Module):
    """A unit that runs several times, and whose weights each run reads step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            h = h + self.cell(h)[0]
        return h


class Tied(nn.Module):
    """Reads one weight twice, by two names."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.out.weight = self.into.weight

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.into(h)))


class Compared(nn.Module):
    """A preferred and a rejected answer of one model, as preference losses have them."""

    def __init__(self) -> None:
        super().__init__()
        self.tied = Tied()

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.tied(h) - self.tied(h.flip(0)))


class Whole(nn.Module):
    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(WIDTH, WIDTH), middle, nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.middle(torch.tanh(self.first(x))))


SHAPES: dict[str, Callable[[], nn.Module]] = {
    c.__name__: c for c in (Experts, AroundSkip, Attended, Decoded, Rolled, Compared)
}
UNITS = {Gated, nn.MultiheadAttention, nn.GRU, Tied}


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(5, 3, WIDTH, generator=torch.Generator().manual_seed(100 * rank + step)).to(DEVICE)


def trained(face: Any, rank: int, shape: str, frozen: bool, checkpoint: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = Whole(SHAPES[shape]())
    if frozen:
        model.middle.requires_grad_(False)
    if checkpoint:
        middle = model.middle.forward
        model.middle.forward = lambda h: torch.utils.checkpoint.checkpoint(middle, h, use_reentrant=False)
    model = face(model, auto_wrap_policy=ModuleWrapPolicy(UNITS), device_id=DEVICE, use_orig_params=True)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for step in range(4):
        with model.no_sync() if step == 1 else torch.enable_grad():
            model(batch(rank, step)).pow(2).mean().backward()
        if step != 1:
            optimizer.step()
            optimizer.zero_grad()
    with face.summon_full_params(model):
        return weights_here(model)


def both(rank: int, world_size: int, shape: str, frozen: bool, checkpoint: bool) -> None:
    with quiet_fsdp1():
        expected = trained(FSDP1, rank, shape, frozen, checkpoint)
    found = trained(FSDP, rank, shape, frozen, checkpoint)
    different = [name for name in expected if not torch.equal(expected[name], found[name])]
    assert different == [], different


@pytest.mark.parametrize("how", ["trained", "frozen", "checkpoint"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients_add_up_as_under_fsdp1(pool: Pool, shape: str, how: str) -> None:
    pool.run(both, 2, shape, how == "frozen", how == "checkpoint")


def gathered_in_backward(rank: int, world_size: int) -> None:
    torch.manual_seed(0)
    model = FSDP(Whole(Decoded()), auto_wrap_policy=ModuleWrapPolicy({Gated}), device_id=DEVICE)
    groups = [unit._get_fsdp_state()._fsdp_param_group for unit in fsdp_modules(model)[:-1]]  # type: ignore[attr-defined]
    output, seen = model(batch(rank, 0)), []
    for layer in model.middle.layers:  # type: ignore[attr-defined]
        layer.up.register_full_backward_hook(lambda *_: seen.append(sum(group.is_unsharded for group in groups)))
    output.mean().backward()
    del output
    model(batch(rank, 1)).mean().backward()
    assert len(seen) == 3 and max(seen) <= 2, seen


def test_units_are_freed_though_what_they_read_is_shared(pool: Pool) -> None:
    pool.run(gathered_in_backward, 2)


def twice_in_one_backward(rank: int, world_size: int, strategy: ShardingStrategy, use_orig_params: bool) -> None:
    found = []
    for face in (FSDP1, FSDP):
        torch.manual_seed(0)
        with quiet_fsdp1():
            model = face(Whole(Tied()), device_id=DEVICE, use_orig_params=use_orig_params, sharding_strategy=strategy)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            chosen, rejected = (model(batch(rank, 2 * step + i)).mean(1) for i in range(2))
            assert face is FSDP1 or all(isinstance(param, nn.Parameter) for param in model.parameters())
            (-nn.functional.logsigmoid(chosen - rejected).mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
        with face.summon_full_params(model):
            found.append(weights_here(model))
    assert [name for name in found[0] if not torch.equal(found[0][name], found[1][name])] == []


@pytest.mark.parametrize("use_orig_params", [True, False])
@pytest.mark.parametrize("strategy", ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"])
def test_weights_that_each_of_two_forwards_reads_twice(pool: Pool, strategy: str, use_orig_params: bool) -> None:
    pool.run(twice_in_one_backward, 2, ShardingStrategy[strategy], use_orig_params)


class Failing(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        if h.isnan().any():
            raise ArithmeticError
        return h


def raised(rank: int, world_size: int) -> None:
    model = FSDP(Whole(Failing()), device_id=DEVICE, use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ArithmeticError):
        model(torch.full((2, WIDTH), torch.nan, device=DEVICE))
    for step in range(2):
        model(batch(rank, step)).mean().backward()
        assert all(isinstance(param, nn.Parameter) and param.grad is not None for param in model.parameters())
        optimizer.step()
        optimizer.zero_grad()


def test_a_forward_that_raised_leaves_nothing_exchanged(pool: Pool) -> None:
    pool.run(raised, 2)
