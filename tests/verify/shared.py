"""A decoder whose layers read one tensor of the encoder, twice each; it runs on the workers of the pool."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_migrate.verify.recorder.arm import recorded
from fsdp_migrate.verify.recorder.orders import Orders

STEPS = 2


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.q(x) * self.k(context)) * self.v(context)


class Single(Layer):
    """Reads the context once: its part of the gradient is one number, whatever the node that adds it."""

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.q(x) * self.k(context)) * self.v(x)


class Decoder(nn.Module):
    def __init__(self, layer: type[Layer]) -> None:
        super().__init__()
        self.encoder = nn.Linear(16, 16)
        self.layers = nn.ModuleList(layer() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        context = self.encoder(x).relu()
        for layer in self.layers:
            x = layer(x, context)
        return x


def run(rank: int, world_size: int, directory: str, deep: int) -> None:
    """Record the training of both decoders under FSDP1 and FSDP2."""
    torch.set_num_threads(1)
    for layer in (Layer, Single):
        for generation in ("before", "after"):
            torch.manual_seed(0)
            model: nn.Module = Decoder(layer)
            if generation == "before":
                model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({layer}), device_id=torch.device("cpu"))
            else:
                mesh = init_device_mesh("cpu", (world_size,))
                for unit in model.layers:  # type: ignore[union-attr]
                    fully_shard(unit, mesh=mesh)
                fully_shard(model, mesh=mesh)
            # As with flat parameters, which have one group.
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            out = Path(directory, layer.__name__, generation)
            with recorded(Orders(str(out), STEPS, stop=False, deep=deep)):
                for step in range(STEPS):
                    seed = torch.Generator().manual_seed(10 * step + rank)
                    model(torch.randn(33, 16, generator=seed)).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
