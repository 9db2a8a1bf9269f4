"""Small trainings on two ranks that differ from each other in one thing; they run on the workers of the pool."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    StateDictType,
    fully_shard,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fsdp_migrate.verify.recorder.arm import recorded
from fsdp_migrate.verify.recorder.orders import Orders
from tests.verify.shared import Layer

#: Backwards in the one step of a training that leaves out reductions.
MICRO = 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)
        self.act = nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.linear.weight.dtype)
        return x + self.act(self.linear(self.norm(x)))


class Net(nn.Module):
    """``scale`` is a buffer, ``spare`` a layer that takes no part in the loss; ``gain`` scales the blocks' input."""

    def __init__(self, tie: str = "head", gain: float | torch.Tensor = 1.0, spare: float | None = None) -> None:
        super().__init__()
        self.gain, self.share = gain, spare
        self.embed = nn.Embedding(12, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.spare = nn.Linear(8, 8)
        self.head = nn.Linear(8, 12, bias=False)
        self.register_buffer("scale", torch.ones(1))
        if tie == "head":
            self.head.weight = self.embed.weight
        elif tie == "embed":
            with torch.no_grad():
                self.head.weight.copy_(self.embed.weight)
            self.embed.weight = self.head.weight
        else:
            with torch.no_grad():
                self.head.weight.copy_(self.embed.weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) * self.gain
        for block in self.blocks:
            x = block(x)
        if self.share is not None:
            x = x + self.share * self.spare(x)
        return self.head(x) * self.scale  # type: ignore[no-any-return]


def nothing(model: nn.Module) -> None:
    """What most trainings do besides."""


def fsdp2(root: bool = True, units: tuple[type, ...] = (Block, Layer), hybrid: bool = False, **options: Any) -> Any:
    """A function that shards the blocks and then the model; ``root``: reshard_after_forward of the model itself."""

    def shard(model: nn.Module) -> nn.Module:
        mesh = init_device_mesh("cpu", (2, 1) if hybrid else (2,), mesh_dim_names=("r", "s")[-1 - hybrid :])
        for module in model.modules():
            if isinstance(module, units):
                fully_shard(module, mesh=mesh, **options)
        return fully_shard(model, mesh=mesh, **{**options, "reshard_after_forward": root})

    return shard


def fsdp1(*units: type[nn.Module], **options: Any) -> Callable[[nn.Module], nn.Module]:
    policy = ModuleWrapPolicy(set(units or (Block, Layer)))
    return lambda model: FSDP(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), **options)


def ignoring(*names: str) -> Callable[[nn.Module], nn.Module]:
    """FSDP1, whose units have nothing of these modules."""
    options: dict[str, Any] = {"device_id": torch.device("cpu"), "use_orig_params": True}
    policy = ModuleWrapPolicy({Block, Layer})
    return lambda model: FSDP(
        model, auto_wrap_policy=policy, ignored_modules=[model.get_submodule(name) for name in names], **options
    )


def adamw(model: nn.Module, lr: float = 0.01) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr)


def resumed(model: nn.Module, lr: float = 0.01) -> Optimizer:
    """Two steps that change no weight lie behind it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    for _ in range(2):
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
        optimizer.step()
        optimizer.zero_grad()
    return optimizer


def fresh(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)


def reloaded(
    offload: bool = True, change: Callable[[Any], None] = nothing, **options: Any
) -> Callable[[nn.Module], Optimizer]:
    """Two steps lie behind it, and its state has been saved whole and loaded again; ``change`` what was saved."""

    def build(model: nn.Module) -> Optimizer:
        optimizer = torch.optim.AdamW(model.parameters(), **options)
        for factor in (0.5, 2.0):
            for param in model.parameters():
                param.grad = param.detach().clone() * factor
            optimizer.step()
            optimizer.zero_grad()
        again = torch.optim.AdamW(model.parameters(), **options)
        if isinstance(model, FSDP):
            config = FullOptimStateDictConfig(offload_to_cpu=offload, rank0_only=False)
            whole = FullStateDictConfig(offload_to_cpu=offload, rank0_only=False)
            with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, whole, config):
                saved = FSDP.optim_state_dict(model, optimizer)
                change(saved["state"])
                again.load_state_dict(FSDP.optim_state_dict_to_load(model, again, saved))
        else:
            kind = StateDictOptions(full_state_dict=True)
            saved = get_optimizer_state_dict(model, optimizer, options=kind)
            change(saved["state"])
            set_optimizer_state_dict(model, again, saved, options=kind)
        return again

    return build


def halved(states: Any) -> None:
    for state in states.values():
        state["exp_avg"].mul_(0.5)


def without_biases(lr: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: torch.optim.AdamW([p for n, p in model.named_parameters() if "bias" not in n], lr=lr)


def stale(model: nn.Module) -> Optimizer:
    """Of a model that nobody trains; gradients of its own keep it stepping."""
    other = Net()
    for param in other.parameters():
        param.grad = torch.zeros_like(param)
    return torch.optim.AdamW(other.parameters(), lr=0.01)


def grouped(decays: Callable[[str, nn.Parameter], bool]) -> Callable[[nn.Module], Optimizer]:
    def build(model: nn.Module) -> Optimizer:
        sides: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
        for name, param in model.named_parameters():
            sides[decays(name, param)].append(param)
        plain, decayed = sides
        return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}])

    return build


class Drifting(torch.optim.AdamW):
    """Moves the weights once more after its step."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for param in group["params"]:
                    param.mul_(1.01)


def tokens(micro: int, rank: int) -> torch.Tensor:
    return torch.randint(12, (3, 5), generator=torch.Generator().manual_seed(10 * micro + rank))


def numbers(micro: int, rank: int) -> torch.Tensor:
    return torch.randn(33, 16, generator=torch.Generator().manual_seed(10 * micro + rank))


def sync_last(model: Any, micro: int) -> None:
    if isinstance(model, FSDP):
        # What no_sync() sets around the other micro-batches.
        for unit in FSDP.fsdp_modules(model):
            unit._sync_gradients = micro == MICRO - 1
        return
    model.set_requires_gradient_sync(micro == MICRO - 1)


def sync_never(model: Any, micro: int) -> None:
    model.set_requires_gradient_sync(False)


def sync_always(model: Any, micro: int) -> None:
    """As FSDP2 does by itself."""


def scaled(factor: float, names: str = "") -> Callable[[nn.Module], None]:
    """Scale the gradients of parameters whose name has ``names`` in it."""

    def scale(model: nn.Module) -> None:
        for name, param in model.named_parameters():
            if param.grad is not None and names in name:
                param.grad.mul_(factor)

    return scale


def weights(change: Callable[[str, torch.Tensor], None]) -> Callable[[nn.Module], None]:
    """Change the model before it is sharded."""

    def apply(model: nn.Module) -> None:
        with torch.no_grad():
            for name, param in model.named_parameters():
                change(name, param)

    return apply


def redrawn(name: str, param: torch.Tensor) -> None:
    if param.dim() > 1:
        param.copy_(torch.randn(param.shape, generator=torch.Generator().manual_seed(len(name))) * param.std())


def by_rank(name: str, param: torch.Tensor) -> None:
    if param.dim() > 1:
        param.add_(dist.get_rank())


def clip(*limits: float, then: Callable[[nn.Module], None] = nothing) -> Callable[[nn.Module], None]:
    """Clip the norm to each of the limits in turn."""

    def clipped(model: nn.Module) -> None:
        for limit in limits:
            if isinstance(model, FSDP):
                model.clip_grad_norm_(limit)
            else:
                torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        then(model)

    return clipped


def clip_value(model: nn.Module) -> None:
    torch.nn.utils.clip_grad_value_(model.parameters(), 1e3)


def local_norm(parameters: Any, max_norm: float) -> torch.Tensor:
    """Clip as torch does, and return this rank's part of the norm, as ``item()`` of torch before 2.13 gave it."""
    parameters = list(parameters)
    mine = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in parameters if p.grad is not None]
    local = torch.stack([grad.norm() for grad in mine]).norm()
    dist.all_reduce(whole := local.square())
    for grad in mine:
        grad.mul_(torch.clamp(max_norm / (whole.sqrt() + 1e-6), max=1.0))
    return local


_SHARD = fsdp2()


def last_digits(parameters: Any, max_norm: float) -> torch.Tensor:
    """Clip by a norm as it is when the squares are added up in another order."""
    parameters = list(parameters)
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]) * (1 + 2.0**-21)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


@dataclass(frozen=True)
class Training:
    """``model`` is changed by ``initial``, sharded by ``shard``, and trained; ``gradients`` comes after backwards."""

    shard: Callable[[nn.Module], nn.Module] = _SHARD
    model: Callable[[], nn.Module] = Net
    initial: Callable[[nn.Module], None] = nothing
    optimizer: Callable[[nn.Module], Optimizer] = adamw
    batch: Callable[[int, int], torch.Tensor] = tokens
    target: float = 0.0
    sync: Callable[[Any, int], None] | None = None
    gradients: Callable[[nn.Module], None] = nothing
    clipping: Any = None
    deep: int = 0

    def run(self, rank: int, out: Path) -> None:
        """Record the training to ``out``."""
        torch.manual_seed(0)
        model = self.model()
        self.initial(model)
        model = self.shard(model)
        optimizer = self.optimizer(model)
        with _clipping_with(self.clipping), recorded(Orders(str(out), 1, stop=False, deep=self.deep)):
            self._step(model, optimizer, rank)

    def _step(self, model: nn.Module, optimizer: Optimizer, rank: int) -> None:
        for micro in range(1 if self.sync is None else MICRO):
            if self.sync is not None:
                self.sync(model, micro)
            (model(self.batch(micro, rank)).float() - self.target).square().mean().backward()
        self.gradients(model)
        optimizer.step()


@contextlib.contextmanager
def _clipping_with(function: Any) -> Iterator[None]:
    original = torch.nn.utils.clip_grad_norm_
    if function is not None:
        torch.nn.utils.clip_grad_norm_ = function
    try:
        yield
    finally:
        torch.nn.utils.clip_grad_norm_ = original
