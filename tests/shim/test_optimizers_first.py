"""Optimizers that are built before the model is wrapped: they train on, as under FSDP1, or say that they cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from tests.device import DEVICE, ranks
from tests.pool import Pool
from tests.shim.models import Model, build, loss_of
from tests.shim.training import POLICIES, Outcome, assert_same, clean, quiet_fsdp1, weights_here, weights_of


class Signs(torch.optim.Optimizer):
    """Keeps what it was given in attributes of its own besides the groups, as torch's LBFGS does."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(params, {"lr": 0.01})
        self.all = [param for group in self.param_groups for param in group["params"]]
        self.rates = dict.fromkeys(self.all, 0.01)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for param in self.all:
            if param.grad is not None:
                param.sub_(param.grad.sign() * self.rates[param])


def grouped(model: nn.Module) -> torch.optim.Optimizer:
    wide = [param for param in model.parameters() if param.dim() > 1]
    narrow = [param for param in model.parameters() if param.dim() <= 1]
    return torch.optim.AdamW([{"params": wide, "weight_decay": 0.1}, {"params": narrow, "lr": 0.05}], lr=0.01)


def by_width(model: nn.Module) -> list[dict[str, Any]]:
    table: dict[float, list[nn.Parameter]] = {}
    for param in model.parameters():
        table.setdefault(0.1 if param.dim() > 1 else 0.0, []).append(param)
    return [{"params": params, "weight_decay": decay} for decay, params in table.items()]


LATE: dict[str, tuple[Callable[[nn.Module], Any], Callable[[Any], torch.optim.Optimizer]]] = {
    "groups": (by_width, lambda groups: torch.optim.AdamW(groups, lr=0.01)),
    "a list": (lambda model: list(model.parameters()), lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)),
    "an own attribute": (lambda model: tuple(model.parameters()), Signs),
}
MAKERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "AdamW": grouped,
    "an own attribute": lambda model: Signs(model.parameters()),
}


def whole(face: Any, model: Model, **keywords: Any) -> Any:
    return face(model, auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE, **keywords)


def by_hand(face: Any, model: Model, **keywords: Any) -> Any:
    for index, block in enumerate(model.blocks):
        model.blocks[index] = face(block, device_id=DEVICE, **keywords)
    return face(model, device_id=DEVICE, **keywords)


WRAPS = {"whole": whole, "by hand": by_hand}
FACES: dict[str, Any] = {"fsdp1": FSDP1, "FSDP": fsdp_compat.FSDP, "shard": fsdp_compat.shard}


def trained(rank: int, world_size: int, face: str, maker: str, wrap: str, gathered: bool = False) -> Outcome:
    model: Any = build()
    late = LATE[maker.removeprefix("late: ")] if maker.startswith("late: ") else None
    held = MAKERS[maker](model) if late is None else late[0](model)
    losses = []
    with quiet_fsdp1():
        model = WRAPS[wrap](FACES[face], model, use_orig_params=True)
        if gathered:
            # A forward without backward leaves FSDP2's root whole.
            loss_of(model, rank, 0)
        optimizer = held if late is None else late[1](held)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for step in range(4):
            optimizer.zero_grad()
            loss = loss_of(model, rank, step)
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
        if face != "fsdp1":
            return Outcome(losses, [], weights_of(model))
        with FSDP1.summon_full_params(model):
            return Outcome(losses, [], weights_here(model))


@pytest.mark.parametrize("face", ["FSDP", "shard"])
@pytest.mark.parametrize(
    ("maker", "wrap"), [(maker, "whole") for maker in MAKERS] + [("AdamW", "by hand"), ("SGD", "by hand")]
)
def test_they_train_as_under_fsdp1(pool: Pool, maker: str, wrap: str, face: str) -> None:
    theirs, ours = (pool.run(trained, ranks(2), side, maker, wrap) for side in ("fsdp1", face))
    for first, second in zip(theirs, ours, strict=True):
        assert_same(first, second)


@pytest.mark.parametrize("face", ["FSDP", "shard"])
@pytest.mark.parametrize(("maker", "gathered"), [("groups", False), ("a list", True), ("an own attribute", False)])
def test_groups_that_were_collected_before_train(pool: Pool, maker: str, gathered: bool, face: str) -> None:
    theirs, ours = (pool.run(trained, ranks(2), side, f"late: {maker}", "whole", gathered) for side in ("fsdp1", face))
    for first, second in zip(theirs, ours, strict=True):
        assert_same(first, second)


def holding_its_list(rank: int, world_size: int) -> None:
    model = build()
    optimizer = torch.optim.LBFGS(model.parameters())
    whole(fsdp_compat.shard, model, use_orig_params=True)
    assert {*optimizer._params} == {*model.parameters()}


def test_a_list_that_an_optimizer_shares_with_its_group_is_the_same(pool: Pool) -> None:
    pool.run(holding_its_list, ranks(2))


def without_original_parameters(rank: int, world_size: int, face: str) -> None:
    """Worker: FSDP1 trains nothing then, in silence; the shim says so."""
    model: Any = build()
    before = {name: param.detach().cpu().clone() for name, param in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with quiet_fsdp1():
        model = whole(FACES[face], model)
        loss_of(model, rank, 0).backward()
        if face == "fsdp1":
            optimizer.step()
            with FSDP1.summon_full_params(model):
                assert all(torch.equal(param.cpu(), before[clean(name)]) for name, param in model.named_parameters())
            return
    with pytest.raises(RuntimeError, match="would train nothing, as under FSDP1 without use_orig_params=True"):
        optimizer.step()


@pytest.mark.parametrize("face", FACES)
def test_without_use_orig_params_nothing_trains(pool: Pool, face: str) -> None:
    pool.run(without_original_parameters, ranks(2), face)


class Plain:
    """An optimizer without torch's base class."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        self.params = list(params)
        self.steps = 0

    def step(self) -> None:
        self.steps += 1


class Grouped(Plain):
    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        super().__init__(())
        self.groups = [{"lr": 0.1, "params": tuple(params)}]


class Slotted:
    __slots__ = ("params",)

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        self.params = dict(enumerate(params))

    def step(self) -> None: ...


def of_its_own(rank: int, world_size: int, face: str) -> None:
    makers: tuple[type[Plain], ...] = (Plain, Grouped)
    for maker in makers:
        model, other = build(), build(1)
        own, apart, rebuilt = maker(model.parameters()), maker(other.parameters()), Plain(model.parameters())
        whole(FACES[face], model, use_orig_params=True)
        with pytest.raises(RuntimeError, match=rf"this {maker.__name__} was built before .* Build it after sharding"):
            own.step()
        apart.step()
        rebuilt.params = list(model.parameters())
        rebuilt.step()
        assert (own.steps, apart.steps, rebuilt.steps) == (0, 1, 1)
    model = build()
    slotted = Slotted(model.parameters())
    with pytest.raises(RuntimeError, match="this Slotted was built before the model was sharded"):
        whole(FACES[face], model, use_orig_params=True)
    del slotted


@pytest.mark.parametrize("face", ["FSDP", "shard"])
def test_what_is_no_optimizer_of_torch_stops_at_its_first_step(pool: Pool, face: str) -> None:
    pool.run(of_its_own, ranks(2), face)
