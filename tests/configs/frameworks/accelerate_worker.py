"""Trains under accelerate on one rank, with the environment that its launcher made from a file.

accelerate takes FSDP on accelerators alone: on a CPU the state says MULTI_CPU and the plugin is ignored. Its gate is
put aside here, in one place; what builds the plugin, wraps the model and steps is accelerate's own. FSDP1 broadcasts no
parameters on the CPU either, so that is done before, for the same result.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

STEPS = 5


class Block(nn.Module):
    """A layer: the unit of the tests' policy."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.down(torch.relu(self.up(self.norm(x)))))


class Net(nn.Module):
    """Three layers between two projections; with ``target`` it returns the loss, as models of transformers do."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.blocks = nn.ModuleList(Block(16, dropout) for _ in range(3))

    def forward(self, x: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        x = self.last(x)
        return x if target is None else nn.functional.mse_loss(x, target.to(x.dtype))


def environment(path: str) -> dict[str, str]:
    """The variables that ``accelerate launch --config_file path`` gives to its processes."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    arguments: argparse.Namespace = launch_command_parser().parse_args(
        ["--config_file", path, "--main_process_port", "0", "train.py"]
    )
    arguments, _, _ = _validate_launch_command(arguments)
    made: dict[str, str] = prepare_multi_gpu_env(arguments)
    return {name: value for name, value in made.items() if name.startswith(("FSDP_", "ACCELERATE_", "PARALLELISM_"))}


def train(
    rank: int, world_size: int, variables: dict[str, str], dropout: float, by_rank: bool, source: str = ""
) -> dict[str, Any]:
    """Losses, the class of the prepared model, its units and the dtype of its loss.

    ``by_rank``: other weights on each rank. ``source`` is a program that makes ``plugin`` itself.
    """
    os.environ.update(variables)
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)})
    os.environ.update({"LOCAL_WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin

    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    os.environ.pop("ACCELERATE_USE_FSDP", None)
    synced = os.environ.pop("FSDP_SYNC_MODULE_STATES", "") == "true"
    made: dict[str, Any] = {"Block": Block}
    exec(compile(source, "plugin.py", "exec"), made)
    plugin = made["plugin"] if source else FullyShardedDataParallelPlugin()
    precision = variables["ACCELERATE_MIXED_PRECISION"]
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    for shared in (AcceleratorState._shared_state, PartialState._shared_state):
        shared.update(distributed_type=DistributedType.FSDP, device=torch.device("cpu"))
    accelerator.state.fsdp_plugin = plugin
    if precision != "no":
        plugin.set_mixed_precision(precision)
    torch.manual_seed(7 + rank * by_rank)
    model: Any = Net(dropout)
    if plugin.fsdp_version == 1 and synced:
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    torch.manual_seed(100 + rank)
    losses, loss = [], torch.empty(0)
    for _ in range(STEPS):
        loss = model(torch.randn(4, 8), torch.randn(4, 4))
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    kinds = (type(model).__name__, *(type(one).__name__ for one in model.modules()))
    units = sum(kind.startswith(("FSDP", "FullySharded")) for kind in kinds[1:])
    return {"losses": losses, "class": kinds[0], "units": units, "dtype": str(loss.dtype)}
