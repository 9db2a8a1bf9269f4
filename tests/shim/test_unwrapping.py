"""``.module`` of a model that is sharded in place: loops that take wrappers off must end, others must not notice."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fsdp_compat
from fsdp_compat import FSDP
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.models import build, tokens
from tests.shim.training import POLICIES


def while_isinstance(m: Any) -> Any:
    while isinstance(m, FSDP):
        m = m.module
    return m


def while_hasattr(m: Any) -> Any:
    while hasattr(m, "module"):
        m = m.module
    return m


def by_getattr(m: Any) -> Any:
    while hasattr(m, "module"):
        m = getattr(m, "module", m)
    return m


def by_wrapped_name(m: Any) -> Any:
    while hasattr(m, "_fsdp_wrapped_module"):
        m = m._fsdp_wrapped_module
    return m


class Trainer:
    def __init__(self, model: Any) -> None:
        self.model = model


def of_an_attribute(m: Any) -> Any:
    trainer = Trainer(m)
    while isinstance(trainer.model, (FSDP, nn.DataParallel)):
        trainer.model = trainer.model.module
    return trainer.model


def recursive(m: Any) -> Any:
    return recursive(m.module) if isinstance(m, FSDP) else m


def mutual(m: Any) -> Any:
    return _other(m)


def _other(m: Any) -> Any:
    return mutual(m.module) if hasattr(m, "module") else m


ENDLESS = (while_isinstance, while_hasattr, by_getattr, by_wrapped_name, of_an_attribute, recursive, mutual)


def unwrap_once(m: Any) -> Any:
    if hasattr(m, "module"):
        m = m.module
    return m


def many_reads(model: Any) -> None:
    for _ in range(5000):
        core = model.module if hasattr(model, "module") else model
        assert core is model
    for _ in range(5000):
        assert unwrap_once(model) is model


def epochs(model: Any, rank: int) -> None:
    with torch.no_grad():
        for _ in range(30):
            for _ in range(100):
                model = model.module
            model(tokens(rank, 0))


def endless(rank: int, world_size: int) -> None:
    model = FSDP(build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE)
    for unwrap in ENDLESS:
        for each in (model, model.blocks[0]):
            with pytest.raises(RuntimeError, match=r"this loop over \.module does not end"):
                unwrap(each)
    many_reads(model)
    epochs(model, rank)
    assert model.module is model


def test_a_loop_that_cannot_end_is_an_error_and_others_go_on(pool: Pool) -> None:
    pool.run(endless, 1)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


def child_called_module(rank: int, world_size: int) -> None:
    inner: Callable[[], nn.Module] = lambda: nn.Sequential(Holder(), nn.Linear(3, 3))  # noqa: E731
    for build_one, policy in ((Holder, None), (inner, fsdp_compat.ModuleWrapPolicy({Holder}))):
        with pytest.warns(UserWarning, match="FSDPHolder has a child called module, and .module is that child"):
            model = FSDP(build_one(), auto_wrap_policy=policy, device_id=DEVICE)
        holder = model if policy is None else model[0]
        assert holder.module is holder._modules["module"]
        model(torch.ones(1, 3, device=DEVICE)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FSDP(nn.Linear(3, 3), device_id=DEVICE)


def test_a_child_called_module_is_warned_of(pool: Pool) -> None:
    pool.run(child_called_module, 2)
