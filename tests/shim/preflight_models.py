"""Models with one thing wrong each, for the preflight; they are built on the workers of the pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.optim import Optimizer

import fsdp_compat
from tests.device import DEVICE, KIND

Built = tuple[nn.Module, Optimizer | None, Any]
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


class Model(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


class Generating(Model):
    def generate(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)  # type: ignore[no-any-return]


class Config:
    tie_word_embeddings = True


class Tied(Model):
    config = Config()

    def get_input_embeddings(self) -> nn.Module:
        return self.layers[0].up  # type: ignore[return-value]

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def shard(model: nn.Module, root: bool = True, **options: Any) -> nn.Module:
    for layer in model.layers:  # type: ignore[union-attr]
        fully_shard(layer, **options)  # type: ignore[arg-type]
    return fully_shard(model, **options) if root else model


def sgd(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters())


def healthy() -> Built:
    model = shard(Model())
    return model, sgd(model), torch.full((1,), dist.get_rank())


def healthy_in_bf16() -> Built:
    model = shard(Model(), mp_policy=BF16)
    return model, sgd(model), None


def healthy_shim() -> Built:
    model: nn.Module = fsdp_compat.FSDP(Model(), auto_wrap_policy=ModuleWrapPolicy({Layer}))
    return model, sgd(model), None


def healthy_fsdp1() -> Built:
    model = FSDP(Model(), auto_wrap_policy=ModuleWrapPolicy({Layer}), use_orig_params=True, device_id=DEVICE)
    return model, sgd(model), None


def root_only() -> Built:
    model = fully_shard(Model())
    return model, sgd(model), None


def one_large_unit() -> Built:
    model = Model(8)
    fully_shard(model.layers[0])
    return fully_shard(model), None, None


def shard_dimension_of_one() -> Built:
    return shard(Model(), mesh=init_device_mesh(KIND, (2, 1), mesh_dim_names=("r", "s"))), None, None


def zeros() -> Built:
    model = Model().to("meta").to_empty(device=DEVICE)
    for param in model.parameters():
        nn.init.zeros_(param)
    return shard(model), None, None


def on_meta() -> Built:
    with torch.device("meta"):
        model = Model()
    return shard(model), None, None


def not_finite() -> Built:
    model = Model()
    model.head.weight.data[3, 3] = float("nan")
    return shard(model), None, None


def same_layers() -> Built:
    model = Model()
    model.layers[2].load_state_dict(model.layers[0].state_dict())
    return shard(model), None, None


def same_shards() -> Built:
    model = shard(Model())
    # What a generator that is the same on every rank gives each shard.
    torch.manual_seed(1)
    with torch.no_grad():
        local = model.head.weight.to_local()  # type: ignore[union-attr, operator]
        local.copy_(torch.randn(local.shape))
    return model, None, None


def replicas_apart() -> Built:
    model = Model()
    with torch.no_grad():
        model.head.weight.add_(dist.get_rank())
    return shard(model, mesh=init_device_mesh(KIND, (2, 1), mesh_dim_names=("r", "s"))), None, None


def untied() -> Built:
    return shard(Tied()), None, None


def stale_optimizer() -> Built:
    model = Model()
    optimizer = sgd(model)
    return shard(model), optimizer, None


def left_out() -> Built:
    model = shard(Model())
    return model, torch.optim.SGD([p for n, p in model.named_parameters() if "bias" not in n], lr=0.1), None


def low_master_weights() -> Built:
    return shard(Model().to(torch.bfloat16), mp_policy=BF16), None, None


def promoting_buffer() -> Built:
    model = Model()
    model.register_buffer("angles", torch.ones(3))
    return shard(model, mp_policy=BF16), None, None


def quantised() -> Built:
    model = Model()
    model.packed = nn.Parameter(torch.arange(8, dtype=torch.uint8), requires_grad=False)
    return shard(model), None, None


def outside() -> Built:
    return shard(Model(), root=False), None, None


def frozen_with_trained() -> Built:
    model = Model()
    for layer in model.layers:
        layer.up.requires_grad_(False)  # type: ignore[operator, union-attr]
    return shard(model), None, None


def checkpoint_inside_out() -> Built:
    model = Model()
    for number, layer in enumerate(model.layers):
        model.layers[number] = checkpoint_wrapper(fully_shard(layer))
    return fully_shard(model), None, None


def healthy_checkpoint() -> Built:
    model = Model()
    for number, layer in enumerate(model.layers):
        model.layers[number] = checkpoint_wrapper(layer)
    return shard(model), None, None


def output_casts() -> Built:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    return shard(Model(), mp_policy=policy), None, None


def not_registered() -> Built:
    return shard(Generating()), None, None


def healthy_registered() -> Built:
    from torch.distributed.fsdp import register_fsdp_forward_method

    model = shard(Generating())
    register_fsdp_forward_method(model, "generate")
    return model, None, None


def other_plans() -> Built:
    return Model(4 + dist.get_rank()), None, None


def same_data() -> Built:
    return shard(Model()), None, {"tokens": torch.arange(5)}


class Unsaveable(torch.optim.SGD):
    def state_dict(self) -> dict[str, Any]:
        raise ValueError("cannot create storage for the state")


def cannot_save() -> Built:
    model = shard(Model())
    return model, Unsaveable(model.parameters(), lr=0.1), None


BUILDERS: dict[Callable[[], Built], str | None] = {
    healthy: None,
    healthy_in_bf16: None,
    healthy_shim: None,
    healthy_fsdp1: None,
    healthy_checkpoint: None,
    healthy_registered: None,
    root_only: "few-units",
    one_large_unit: "few-units",
    shard_dimension_of_one: "mesh-of-one",
    zeros: "uninitialised",
    on_meta: "uninitialised",
    not_finite: "uninitialised",
    same_layers: "same-layers",
    same_shards: "same-shards",
    replicas_apart: "replicas-apart",
    untied: "untied",
    stale_optimizer: "stale-optimizer",
    left_out: "left-out",
    low_master_weights: "low-master-weights",
    promoting_buffer: "promoting-buffers",
    quantised: "quantised",
    outside: "outside-units",
    frozen_with_trained: "frozen-with-trained",
    checkpoint_inside_out: "checkpoint-inside-out",
    output_casts: "output-casts",
    not_registered: "entry-points",
    other_plans: "other-plans",
    same_data: "same-data",
    cannot_save: "save-and-load",
}
