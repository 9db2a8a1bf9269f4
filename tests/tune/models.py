"""Small models whose layouts are worked out on paper and counted in runs, and what a run counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from fsdp_compat.preflight.timeline import Timeline
from fsdp_compat.torch_.param_groups import fsdp_state, param_groups
from fsdp_migrate.tune.sharding_layout import Layout
from fsdp_migrate.tune.traced_model import TracedModel, traced

WIDTH, WORDS = 8, 11


class Block(nn.Module):
    """Attention-free, with a norm, two matrices and a residual."""

    def __init__(self, width: int = WIDTH, *, recomputes: bool = False) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.recomputes = recomputes

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False) if self.recomputes else self.inner(x)


class Language(nn.Module):
    """Embedding, blocks, norm and head, which may share a matrix; blocks may recompute, or be recomputed whole."""

    def __init__(self, layers: int = 3, *, tied: bool = False, inside: bool = False, outside: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(recomputes=inside) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.outside = outside
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.outside else block(x)
        return self.head(self.norm(x))


class Shared(Language):
    """Runs its first block once more in the end."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in (*self.blocks, self.blocks[0]):
            x = block(x)
        return self.head(self.norm(x))


class Fork(nn.Module):
    """Reads its input twice."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.gate(x)) * self.value(x)


class Wide(nn.Module):
    """A residual around a part that reads its input twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fork, self.out = Fork(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.out(x + self.fork(x))


class Residual(Language):
    """With such blocks. The first one's input has no gradient of others."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Wide() for _ in range(3))
        self.embedding.requires_grad_(False)


class Mlp(nn.Module):
    """Layers of several widths, none of which two or three ranks divide evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(5, 7)
        self.blocks = nn.ModuleList(nn.Linear(a, b) for a, b in ((7, 13), (13, 9), (9, 7)))
        self.norm, self.head = nn.LayerNorm(7), nn.Linear(7, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens[..., :5].to(self.head.weight.dtype))
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.head(self.norm(x))


def frozen() -> nn.Module:
    """The embedding and the first two blocks are not trained."""
    model = Language()
    for part in (model.embedding, *model.blocks[:2]):
        part.requires_grad_(False)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": Mlp,
    "language": Language,
    "tied": lambda: Language(tied=True),
    "shared": Shared,
    "frozen": frozen,
    "wide residual": Residual,
    "recomputed inside": lambda: Language(inside=True),
    "recomputed outside": lambda: Language(outside=True),
}


def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[name]()


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randint(WORDS, (2, 6), generator=torch.Generator().manual_seed(10 * step + rank))


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model(tokens)
    return output.float().square().mean()


def recorded(name: str) -> TracedModel:
    """One step of the plain model."""
    model = built(name)
    with Timeline(model) as timeline:
        loss_of(model, batch(0, 0)).backward()
    return traced(timeline.as_dict())


def sharded(model: nn.Module, trace: TracedModel, layout: Layout, device: str = "cpu") -> Any:
    """``model`` in units of a layout, as its code would do it."""
    shape = (layout.replicas, layout.shards) if layout.replicas > 1 else (layout.shards,)
    mesh = init_device_mesh(device, shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    policy = MixedPrecisionPolicy(
        param_dtype=getattr(torch, layout.param_dtype) if layout.param_dtype else None,
        reduce_dtype=getattr(torch, layout.reduce_dtype) if layout.reduce_dtype else None,
    )
    modules = dict(model.named_modules())
    for unit in layout.units:
        own = [modules[trace.modules[place].name] for place in unit.modules]
        fully_shard(own if len(own) > 1 else own[0], mesh=mesh, mp_policy=policy, reshard_after_forward=unit.reshard)
    tops = {module: unit.modules for unit in layout.units[:-1] for module in unit.modules}
    order = list(dict.fromkeys(tops[module] for module in trace.order if module in tops))
    units = [modules[trace.modules[own[0]].name] for own in order]
    for place, unit in enumerate(units):
        if layout.forward_prefetch:
            unit.set_modules_to_forward_prefetch(units[place + 1 : place + 1 + layout.forward_prefetch])
        if layout.backward_prefetch:
            unit.set_modules_to_backward_prefetch(units[max(0, place - layout.backward_prefetch) : place][::-1])
    return model


class Counts(TorchDispatchMode):
    """Collectives and their bytes, and the most bytes of whole parameters and of buffers that ``model`` had inside."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()
        self.gathered = self.both = 0
        units = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self._groups = list({id(group): group for unit in units for group in param_groups(unit)}.values())
        self._root = fsdp_state(units[0]) if units else None

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        for kind, part, place in (
            ("gather", "allgather_base", 0),
            ("scatter", "reduce_scatter_base", 1),
            ("reduction", "allreduce", 0),
        ):
            if name.startswith("c10d.") and part in name:
                tensor = args[place][0] if isinstance(args[place], (list, tuple)) else args[place]
                self.counts[kind] += 1
                self.moved[kind] += tensor.nbytes
        self.look()
        return result

    def look(self) -> None:
        """What the units hold now."""
        gathered = sum(
            output.untyped_storage().nbytes()
            for group in self._groups
            for param in group.fsdp_params
            for output in param.all_gather_outputs
        )
        shared = self._root._comm_ctx if self._root is not None else None
        if not hasattr(shared, "all_gather_state"):
            # Before the first forward, or of FSDP1.
            return
        pending = [group._all_gather_result for group in self._groups if group._all_gather_result is not None]
        pending += [shared.all_gather_state.all_gather_result] if shared.all_gather_state is not None else []
        buffers = sum(each.all_gather_output.nbytes for each in pending)
        buffers += sum(state.reduce_scatter_input.nbytes for state in shared.reduce_scatter_states)
        self.gathered = max(self.gathered, gathered)
        self.both = max(self.both, gathered + buffers)


def counted(rank: int, world_size: int, name: str, trace: TracedModel, layout: Layout) -> dict[str, Any]:
    """What the second step of a run issues and holds, and all losses."""
    model = sharded(built(name), trace, layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(2):
        with Counts(model) as counts:
            for turn in range(layout.microbatches):
                model.set_requires_gradient_sync(not layout.synchronise_last or turn == layout.microbatches - 1)
                loss = loss_of(model, batch(rank, step))
                loss.backward()
                losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return {
        "counts": counts.counts,
        "moved": counts.moved,
        "gathered": counts.gathered,
        "both": counts.both,
        "losses": losses,
    }
