"""``.module`` of a model that is sharded in place: what takes wrappers off has to end, others must not notice."""

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


def by_default(m: Any) -> Any:
    while getattr(m, "module", None) is not None:
        m = m.module
    return m


def until_it_fails(m: Any) -> Any:
    while True:
        try:
            m = m.module
        except AttributeError:
            return m


def of_many_kinds(m: Any) -> Any:
    """As trainers unwrap by a list of what may wrap a model, compiled or not."""
    kinds = (nn.parallel.DistributedDataParallel, nn.DataParallel, FSDP)
    inner = m._orig_mod if hasattr(m, "_orig_mod") else m
    while isinstance(inner, kinds):
        inner = inner.module
    return inner


def by_any_name(m: Any) -> Any:
    """One name after another, and again from the start."""
    if hasattr(m, "_orig_mod"):
        return by_any_name(m._orig_mod)
    if hasattr(m, "module"):
        return by_any_name(m.module)
    return by_any_name(m._fsdp_wrapped_module) if hasattr(m, "_fsdp_wrapped_module") else m


def saving_by_depth(m: Any, depth: int = 0) -> Any:
    inner = getattr(m, "module", None)
    return m if inner is None or depth > 20 else saving_by_depth(inner, depth + 1)


class Holding:
    """As an averager that is asked for the model whose names it has."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def plain(self) -> Any:
        model = self.model
        if hasattr(model, "module"):
            model = model.module
        return model


def by_method(m: Any) -> Any:
    return Holding(m).plain()


def named_parameters_of(m: Any) -> Any:
    """As engines do that prefix what a wrapper holds."""
    core = m.module if hasattr(m, "module") else m
    assert dict(core.named_parameters()).keys() == dict(m.named_parameters()).keys()
    return core


def in_a_table(m: Any) -> Any:
    held = {"model": m}
    while hasattr(held["model"], "module"):
        held["model"] = held["model"].module
    return held["model"]


def by_a_stack(m: Any) -> Any:
    left = [m]
    while True:
        one = left.pop()
        if not hasattr(one, "module"):
            return one
        left.append(one.module)


def by_several_names(m: Any) -> Any:
    changed = True
    while changed:
        changed = False
        for name in ("_orig_mod", "module"):
            if hasattr(m, name):
                m, changed = getattr(m, name), True
    return m


UNWRAPPING = (
    in_a_table,
    by_a_stack,
    by_several_names,
    while_isinstance,
    while_hasattr,
    by_getattr,
    by_wrapped_name,
    of_an_attribute,
    recursive,
    mutual,
    by_default,
    until_it_fails,
    of_many_kinds,
    by_any_name,
    saving_by_depth,
    by_method,
    named_parameters_of,
)


def until_another_class(m: Any) -> Any:
    while type(m) is not nn.Linear:
        m = m.module
    return m


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


def unwrapped(rank: int, world_size: int) -> None:
    model = FSDP(build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE)
    for unwrap in UNWRAPPING:
        for each in (model, model.blocks[0]):
            for _ in range(3):
                assert unwrap(each) is each, unwrap.__name__
                # Nobody else is told so.
                assert isinstance(each, FSDP)
                assert each.module is each
    with pytest.raises(RuntimeError, match=r"this loop over \.module does not end"):
        until_another_class(model)
    many_reads(model)
    epochs(model, rank)
    assert model.module is model
    assert hasattr(model, "module")


def test_code_that_takes_wrappers_off_ends_with_the_model(pool: Pool) -> None:
    pool.run(unwrapped, 1)


def saving(path: Any, m: Any) -> bool:
    """What is asked again in another call is answered again."""
    if isinstance(m, FSDP):
        m = m.module
        return m is not None
    return False


def asked_again(rank: int, world_size: int) -> None:
    model = FSDP(build(), device_id=DEVICE)
    assert [saving(None, model) for _ in range(5)] == [True] * 5
    if isinstance(model, FSDP):
        inner = model.module
    assert isinstance(model, FSDP)
    assert inner is model


def test_other_calls_of_the_same_code_are_asked_anew(pool: Pool) -> None:
    pool.run(asked_again, 1)


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


def child_called_module(rank: int, world_size: int) -> None:
    inner: Callable[[], nn.Module] = lambda: nn.Sequential(Holder(), nn.Linear(3, 3))  # noqa: E731
    for build_one, policy in ((Holder, None), (inner, fsdp_compat.ModuleWrapPolicy({Holder}))):
        with pytest.warns(UserWarning, match="^Holder has a child called module, and .module is that child"):
            model = FSDP(build_one(), auto_wrap_policy=policy, device_id=DEVICE)
        holder = model if policy is None else model[0]
        assert holder.module is holder._modules["module"]
        model(torch.ones(1, 3, device=DEVICE)).sum().backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FSDP(nn.Linear(3, 3), device_id=DEVICE)


def test_a_child_called_module_is_warned_of(pool: Pool) -> None:
    pool.run(child_called_module, 2)
