"""Training loops of the kinds that programs have, each under FSDP1 and FSDP2; they run on the workers of the pool."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.verify.recorder.arm import recorded
from fsdp_migrate.verify.recorder.orders import Orders
from tests.compiling import collect_dead_models
from tests.verify.variants import CPU, Block, Model

STEPS = 3
MICRO = 2
Shard = Callable[..., nn.Module]


class Turning(Model):
    """Turns its embeddings by a buffer of complex numbers, as rotary position embeddings do."""

    def __init__(self) -> None:
        super().__init__(8)
        self.register_buffer("angles", torch.polar(torch.ones(4), torch.arange(4.0)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = torch.view_as_complex(self.embed(tokens).unflatten(-1, (4, 2))) * self.angles
        x = torch.view_as_real(x).flatten(-2)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


class Unscaled(Model):
    """Without the buffer, which promotes what it meets."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def fsdp1(model: nn.Module, low: bool = False, original: bool = False) -> nn.Module:
    """``low``: computes in bf16 and reduces in fp32, as the other does. ``original``: keeps the model's parameters."""
    policy = MixedPrecision(torch.bfloat16, torch.float32) if low else None
    return FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), mixed_precision=policy, device_id=CPU,
                use_orig_params=original)  # fmt: skip


def fsdp2(model: nn.Module, low: bool = False, original: bool = True) -> nn.Module:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(torch.bfloat16 if low else None, torch.float32, cast_forward_inputs=False)
    for module in list(model.modules()):
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    # As with flat parameters, which have one group.
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def loss_of(model: nn.Module, step: int, rank: int) -> torch.Tensor:
    tokens = torch.randint(11, (4, 5), generator=torch.Generator().manual_seed(10 * step + rank))
    return nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())


def with_closure(shard: Shard, rank: int) -> None:
    """Forward and backward inside the step."""
    model = shard(Model())
    optimizer = adamw(model)
    for step in range(STEPS):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            loss = loss_of(model, step, rank)
            loss.backward()
            return loss

        optimizer.step(closure)


def with_scaler(shard: Shard, rank: int) -> None:
    """Scaled losses; the second backward overflows, so that the optimizer does not step."""
    model = shard(Model())
    optimizer = adamw(model)
    scaler: Any = (ShardedGradScaler if isinstance(model, FSDP) else torch.amp.GradScaler)("cpu", init_scale=1024.0)
    for step in range(STEPS + 1):
        loss = loss_of(model, step, rank)
        scaler.scale(loss * (torch.inf if step == 1 else 1.0)).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def accumulating(shard: Shard, rank: int) -> None:
    model: Any = shard(Model())
    optimizer = adamw(model)
    for step in range(STEPS):
        for micro in range(MICRO):
            last = micro == MICRO - 1
            if not isinstance(model, FSDP):
                model.set_requires_gradient_sync(last)
            with model.no_sync() if isinstance(model, FSDP) and not last else contextlib.nullcontext():
                loss_of(model, MICRO * step + micro, rank).backward()
        optimizer.step()
        optimizer.zero_grad()


def two_models(shard: Shard, rank: int) -> None:
    """Two models, each with an optimizer; the second one steps every other time, and has a schedule."""
    first, second = shard(Model()), shard(Model())
    one, two = adamw(first), adamw(second)
    schedule = torch.optim.lr_scheduler.ExponentialLR(two, 0.5)
    for step in range(STEPS):
        loss_of(first, step, rank).backward()
        one.step()
        one.zero_grad()
        if step % 2 == 0:
            (loss_of(second, step, rank) + loss_of(first, step, rank).detach()).backward()
            two.step()
            two.zero_grad()
            schedule.step()


def _plain(model: nn.Module, rank: int) -> None:
    optimizer = adamw(model)
    for step in range(STEPS):
        loss_of(model, step, rank).backward()
        optimizer.step()
        optimizer.zero_grad()


def in_low_precision(shard: Shard, rank: int) -> None:
    _plain(shard(Unscaled(), low=True), rank)


def with_complex_buffer(shard: Shard, rank: int) -> None:
    _plain(shard(Turning()), rank)


def compiled(shard: Shard, rank: int) -> None:
    """Each block is compiled in place."""
    collect_dead_models()
    model: Any = Model()
    for block in model.blocks:
        block.compile(backend="aot_eager")
    _plain(shard(model), rank)


def compiled_whole(shard: Shard, rank: int) -> None:
    """The sharded model in the wrapper that compiles it, which FSDP1 allows with its own parameters alone."""
    collect_dead_models()
    _plain(torch.compile(shard(Model(), original=True), backend="eager"), rank)  # type: ignore[arg-type]


def compiled_whole_in_place(shard: Shard, rank: int) -> None:
    """The sharded model compiles itself."""
    collect_dead_models()
    model = shard(Model(), original=True)
    model.compile(backend="eager")
    _plain(model, rank)


def alone(directory: str) -> None:
    """One process and no sharding: as it is, and compiled as a whole in both ways."""
    for name in ("eager", "wrapper", "in place"):
        torch.manual_seed(0)
        model: Any = Model()
        with recorded(Orders(str(Path(directory, name)), STEPS, stop=False)):
            if name == "in place":
                model.compile(backend="eager")
            _plain(torch.compile(model, backend="eager") if name == "wrapper" else model, 0)  # type: ignore[arg-type]


LOOPS = (
    with_closure, with_scaler, accumulating, two_models, in_low_precision, with_complex_buffer, compiled,
    compiled_whole, compiled_whole_in_place,
)  # fmt: skip


def run(rank: int, world_size: int, directory: str, name: str) -> None:
    """Record one loop under FSDP1 and FSDP2."""
    torch.set_num_threads(1)
    loop = next(loop for loop in LOOPS if loop.__name__ == name)
    for shard in (fsdp1, fsdp2):
        torch.manual_seed(0)
        with recorded(Orders(str(Path(directory, shard.__name__)), STEPS, stop=False, deep=1)):
            loop(shard, rank)
