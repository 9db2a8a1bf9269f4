"""FSDP around and inside other things that change a module or call it: checkpointing, compiling, adapters, methods."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import register_fsdp_forward_method
from torch.utils.checkpoint import checkpoint

import fsdp_compat
from tests.compiling import collect_dead_models
from tests.device import DEVICE
from tests.pool import Pool, WorkerError
from tests.shim.models import Block, Model, build, loss_of, tokens
from tests.shim.training import POLICIES, Outcome, assert_same, quiet_fsdp1, weights_here, weights_of

PREFIXES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


def wrap(implementation: str, model: nn.Module, policy: str = "transformer") -> Any:
    names: Any = FSDP1 if implementation == "fsdp1" else fsdp_compat.FSDP
    return names(model, auto_wrap_policy=POLICIES[policy](), device_id=DEVICE, use_orig_params=True)


def checkpointed(model: nn.Module) -> None:
    apply_activation_checkpointing(model, check_fn=lambda module: isinstance(module, Block))


def prepared(implementation: str, how: str) -> Any:
    """A sharded model. ``how`` says what else is done to it, and whether before or after."""
    model: Any = build()
    if how.startswith("compiled"):
        collect_dead_models()
    if how == "checkpointed first":
        checkpointed(model)
        return wrap(implementation, model)
    if how == "checkpointed after":
        model = wrap(implementation, model)
        checkpointed(model)
        return model
    if how == "compiled blocks first":
        for index, block in enumerate(model.blocks):
            model.blocks[index] = torch.compile(block, backend="eager", fullgraph=True)
        return wrap(implementation, model)
    if how == "compiled first":
        return wrap(implementation, torch.compile(model, backend="eager"), "none")
    if how == "compiled in place":
        model = wrap(implementation, model)
        for block in model.blocks:
            block.compile(backend="eager")
        return model
    if how == "compiled after":
        return torch.compile(wrap(implementation, model), backend="eager")
    if how == "adapters":
        model.requires_grad_(False)
        for block in model.blocks:
            block.down.requires_grad_(True)
        return wrap(implementation, model)
    assert how == "plain"
    return wrap(implementation, model)


def train(rank: int, world_size: int, implementation: str, how: str) -> Outcome:
    """Worker: three steps."""
    with quiet_fsdp1():
        model = prepared(implementation, how)
        held = [param for param in model.parameters() if param.requires_grad]
        optimizer = torch.optim.AdamW(held, lr=1e-2, weight_decay=0.1)
        losses = []
        for step in range(3):
            loss = loss_of(model, rank, step)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if implementation == "fsdp1":
            with FSDP1.summon_full_params(model):
                weights = weights_here(model)
        else:
            weights = weights_of(model)
    return Outcome(losses, [], {_clean(name): weight for name, weight in weights.items()})


def _clean(name: str) -> str:
    return functools.reduce(lambda cleaned, prefix: cleaned.replace(prefix, ""), PREFIXES, name)


@pytest.mark.parametrize("how", ["checkpointed first", "checkpointed after", "adapters"])
def test_trains_as_fsdp1(pool: Pool, how: str) -> None:
    theirs, ours = pool.run(train, 2, "fsdp1", how), pool.run(train, 2, "fsdp_compat", how)
    for one, other in zip(theirs, ours, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("how", ["compiled blocks first", "compiled first", "compiled in place", "compiled after"])
def test_compiling_changes_nothing(pool: Pool, how: str) -> None:
    theirs, ours = pool.run(train, 2, "fsdp1", "plain"), pool.run(train, 2, "fsdp_compat", how)
    for one, other in zip(theirs, ours, strict=True):
        assert_same(one, other)


def losses_by(rank: int, world_size: int, implementation: str, entry: str) -> list[float]:
    """Worker: losses where the model is not called, but one of its methods."""
    with quiet_fsdp1():
        model = wrap(implementation, build())
        entries: dict[str, Callable[..., torch.Tensor]] = {
            "call": model,
            "forward": model.forward,
            "checkpointed forward": lambda batch: checkpoint(model.forward, batch, use_reentrant=False),  # type: ignore[no-any-return]
        }
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for step in range(2):
            batch = tokens(rank, step)
            out = entries[entry](batch)
            loss = nn.functional.cross_entropy(out.flatten(0, 1), batch.roll(1, dims=1).flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        with torch.no_grad():
            losses.append(entries["forward"](tokens(rank, 9)).sum().item())
    return losses


@pytest.mark.parametrize("implementation", ["fsdp1", "fsdp_compat"])
@pytest.mark.parametrize("entry", ["forward", "checkpointed forward"])
def test_forward_may_be_called_by_name(pool: Pool, implementation: str, entry: str) -> None:
    assert pool.run(losses_by, 2, implementation, entry) == pool.run(losses_by, 2, implementation, "call")


class Encoder(Model):
    def encode(self, batch: torch.Tensor) -> torch.Tensor:
        return self.norm(self.embed(batch))  # type: ignore[no-any-return]


def other_methods(rank: int, world_size: int, registered: bool) -> None:
    """Worker: a method that is not forward."""
    torch.manual_seed(0)
    model = fsdp_compat.FSDP(Encoder(), device_id=DEVICE)
    if registered:
        register_fsdp_forward_method(model, "encode")
    out = model.encode(tokens(rank, 0))
    torch.manual_seed(0)
    assert torch.equal(out, Encoder().to(DEVICE).encode(tokens(rank, 0)))
    assert list(inspect.signature(model.forward).parameters) == ["tokens"]


def test_other_methods_gather_once_they_are_registered(pool: Pool) -> None:
    pool.run(other_methods, 2, True)
    with pytest.raises(WorkerError, match="DTensor"):
        pool.run(other_methods, 2, False)
