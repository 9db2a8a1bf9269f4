"""The training of ``variants`` offloaded, with ignored parameters, resharded in part, and with tensor parallelism."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from fsdp_migrate.verify.recorder.arm import recorded
from fsdp_migrate.verify.recorder.orders import Orders
from tests.verify.variants import CPU, STEPS, Block, Model, train


def _fsdp1(model: nn.Module, **options: object) -> nn.Module:
    policy = ModuleWrapPolicy({Block})
    return FSDP(model, auto_wrap_policy=policy, use_orig_params=True, device_id=CPU, **options)  # type: ignore[arg-type]


def _fsdp2(model: nn.Module, mesh: object, **options: object) -> nn.Module:
    for module in list(model.modules()):
        if isinstance(module, Block):
            fully_shard(module, mesh=mesh, **options)  # type: ignore[arg-type]
    return fully_shard(model, mesh=mesh, **options)  # type: ignore[arg-type]


def two(rank: int, world_size: int, directory: str) -> None:
    """FSDP2 with offload, both with ignored parameters, and FSDP2 of a model whose sizes are even.

    FSDP1 cannot offload where there is no GPU.
    """
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (2,))
    _record(directory, "FSDP1 on two", _fsdp1(_model()), rank)
    _record(directory, "FSDP2 offload", _fsdp2(_model(), mesh, offload_policy=CPUOffloadPolicy(pin_memory=False)), rank)
    model = _model()
    _record(directory, "FSDP1 ignored", _fsdp1(model, ignored_states=[model.blocks[0].linear.weight]), rank)
    model = _model()
    ignored = {model.blocks[0].linear.weight}
    _record(directory, "FSDP2 ignored", _fsdp2(model, mesh, ignored_params=ignored), rank)
    _record(directory, "FSDP2 even", _fsdp2(_model(8), mesh), rank)


def four(rank: int, world_size: int, directory: str) -> None:
    """FSDP2 over four ranks, resharded to two of them after each forward, and beside tensor parallelism."""
    torch.set_num_threads(1)
    mesh = init_device_mesh("cpu", (4,))
    _record(directory, "FSDP2", _fsdp2(_model(), mesh), rank)
    _record(directory, "FSDP2 resharded to two", _fsdp2(_model(), mesh, reshard_after_forward=2), rank)
    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = _model(8)
    for block in model.blocks:
        parallelize_module(block.linear, both["tensor"], ColwiseParallel(output_layouts=Replicate()))
    _record(directory, "FSDP2 and TP", _fsdp2(model, both["data"]), both.get_local_rank("data"))


def _model(width: int = 7) -> Model:
    torch.manual_seed(0)
    return Model(width)


def _record(directory: str, name: str, model: nn.Module, data_rank: int) -> None:
    with recorded(Orders(str(Path(directory, name)), STEPS, stop=False)):
        train(model, data_rank, clips=False)
