"""More models with one thing wrong each: of libraries, of ties, of dtypes, and over four ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from packaging.version import Version
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from fsdp_compat import preflight
from fsdp_compat.torch_.versions import TORCH
from tests.device import DEVICE, KIND
from tests.shim.preflight_layouts import abstract_first, abstract_first_unsharded, healthy_unsharded
from tests.shim.preflight_models import BUILDERS, Built, Model, quantised, shard


class Params4bit(nn.Parameter):
    """As the one of bitsandbytes: packed bytes, with scales beside them."""


class Linear4bit(nn.Linear):
    """As the one of bitsandbytes, its bytes stored as floating point numbers."""


class AdamW8bit(torch.optim.AdamW):
    """As the one of bitsandbytes."""


AdamW8bit.__module__ = "bitsandbytes.optim.adamw"


def packed_outside() -> Built:
    model = Model()
    model.packed = Params4bit(torch.arange(8, dtype=torch.uint8), requires_grad=False)
    ignored: Any = {model.packed}
    return shard(model, ignored_params=ignored), None, None


def packed_layer() -> Built:
    model = Model()
    model.head = Linear4bit(8, 8)
    return shard(model), None, None


def eight_bit_optimizer() -> Built:
    model = shard(Model())
    return model, AdamW8bit(model.parameters()), None


class ByLocalSize(torch.optim.SGD):
    """Keeps a state in a dtype that the size of the shard decides, as 8-bit optimizers do."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                local = param.to_local() if isinstance(param, DTensor) else param
                dtype = torch.bfloat16 if local.numel() >= 64 else torch.float32
                self.state[param]["momentum"] = torch.zeros_like(param, dtype=dtype)


def state_by_local_size() -> Built:
    model = shard(Model())
    return model, ByLocalSize(model.parameters(), lr=0.1), None


def mixed_dtypes() -> Built:
    model = Model()
    for layer in model.layers:
        layer.down.to(torch.bfloat16)  # type: ignore[operator, union-attr]
    return shard(model), None, None


def healthy_mixed_dtypes() -> Built:
    """Mixed precision computes in one dtype; a frozen base in another one has no gradients."""
    model = Model()
    for layer in model.layers:
        layer.down.to(torch.bfloat16).requires_grad_(False)  # type: ignore[operator, union-attr]
        fully_shard(layer.down)  # type: ignore[arg-type, union-attr]
    return shard(model), None, None


class Adapted(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 8)
        self.lora_A, self.lora_B = nn.Linear(8, 2, bias=False), nn.Linear(2, 8, bias=False)


def adapters_alone() -> Built:
    model = Model()
    model.head = Adapted()
    fully_shard(model.head.lora_A)
    fully_shard(model.head.lora_B)
    return shard(model), None, None


def healthy_adapters() -> Built:
    model = Model()
    model.head = Adapted()
    return shard(model), None, None


def root_resharded() -> Built:
    model = shard(Model(), reshard_after_forward=True)
    model(torch.ones(2, 8, device=DEVICE))
    return model, None, None


def healthy_after_a_forward() -> Built:
    model = shard(Model())
    model(torch.ones(2, 8, device=DEVICE))
    return model, None, None


class Embedded(Model):
    """A head that has the embedding's weight, or one equal to it."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(9, 8), nn.Linear(8, 9, bias=False)
        with torch.no_grad():
            self.head.weight.copy_(self.embed.weight)
        if tied:
            self.head.weight = self.embed.weight


def tied_over_units() -> Built:
    """What torch up to 2.11 makes of tied weights in two units: two parameters that start equal."""
    model = Embedded(tied=False)
    fully_shard(model.embed)
    fully_shard(model.head)
    return shard(model), None, None


def healthy_tied() -> Built:
    model = Embedded(tied=True)
    fully_shard([model.embed, model.head])
    return shard(model), None, None


def offloaded_then_initialised() -> Built:
    """Every rank draws for its shard from a generator that has the same seed on all of them."""
    model = shard(Model(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    torch.manual_seed(1)
    with torch.no_grad():
        local = model.head.weight.to_local()  # type: ignore[union-attr, operator]
        nn.init.normal_(local)
    return model, None, None


def resharded_to_two() -> Built:
    return shard(Model(), reshard_after_forward=2), None, None


def healthy_resharded_to_two() -> Built:
    """One mesh, of one unit."""
    model = Model(2)
    fully_shard(model.layers[0], reshard_after_forward=2)
    fully_shard(model.layers[1])
    return fully_shard(model), None, None


def over_some_ranks() -> Built:
    mesh = init_device_mesh(KIND, (2, 2), mesh_dim_names=("r", "s"))
    return shard(Model(), mesh=mesh["s"]), None, None


def healthy_hybrid() -> Built:
    return shard(Model(), mesh=init_device_mesh(KIND, (2, 2), mesh_dim_names=("r", "s"))), None, None


def over_two_meshes() -> Built:
    model = Model()
    fully_shard(model.layers[0], mesh=init_device_mesh(KIND, (2, 2), mesh_dim_names=("r", "s")))
    for layer in model.layers[1:]:
        fully_shard(layer)
    return fully_shard(model), None, None


class WeightWithDynamicFloat8CastTensor(torch.Tensor):
    """As the one of torchao, whose gather casts it."""


def float8(rows: int) -> Built:
    model = Model()
    model.extra = nn.Linear(8, rows, bias=False)
    shard(model)
    # torchao's tensor keeps its class through the operations by which fully_shard takes a shard of it.
    weight = model.extra.weight
    weight._local_tensor = weight._local_tensor.as_subclass(WeightWithDynamicFloat8CastTensor)  # type: ignore[union-attr,operator]
    return model, None, None


def uneven_float8() -> Built:
    return float8(9)


def healthy_float8() -> Built:
    return float8(8)


ALL: dict[Callable[[], Built], str | None] = {
    **BUILDERS,
    healthy_mixed_dtypes: None,
    healthy_adapters: None,
    healthy_after_a_forward: None,
    healthy_tied: None,
    packed_outside: "quantised",
    packed_layer: "quantised",
    eight_bit_optimizer: "quantised",
    uneven_float8: "uneven-float8",
    healthy_float8: None,
    state_by_local_size: "state-dtypes",
    mixed_dtypes: "mixed-dtypes",
    adapters_alone: "adapters-alone",
    root_resharded: "root-resharded",
    tied_over_units: "untied",
    offloaded_then_initialised: "same-shards",
    abstract_first: "class-layout",
    abstract_first_unsharded: "class-layout",
    healthy_unsharded: None,
}


#: The version of torch before which one cannot be built, or before which nothing is wrong with it, and why.
NEEDS: dict[Callable[[], Built], tuple[str, str]] = {
    quantised: ("2.12", "fully_shard of integer parameters"),
    packed_outside: ("2.7", "fully_shard(ignored_params=)"),
    root_resharded: ("2.8", "a root that frees parameters after its forward"),
}


FOUR: dict[Callable[[], Built], str | None] = {
    over_some_ranks: "fewer-ranks",
    healthy_hybrid: None,
    resharded_to_two: "mesh-per-unit",
    over_two_meshes: "several-meshes",
    healthy_resharded_to_two: None,
}


def refused(rank: int, world_size: int) -> str:
    """What torch says of tied weights in two units, at the first forward."""
    model = Embedded(tied=True)
    fully_shard(model.embed)
    try:
        fully_shard(model.head)
        shard(model)(torch.ones(2, 8, device=DEVICE))
    except (RuntimeError, ValueError) as error:
        return str(error)
    return ""


def run(rank: int, world_size: int) -> dict[str, tuple[dict[str, str], str, str, bool]]:
    """By the builder's name: messages by check, the text, the JSON, and whether the optimizer's state is untouched."""
    found = {}
    for build in ALL if world_size == 2 else FOUR:
        if Version(NEEDS.get(build, ("0", ""))[0]) > TORCH:
            continue
        model, optimizer, sample = build()
        report = preflight(model, optimizer, sample=sample)
        messages = {one.check: f"{one.where}: {one.message}" for one in report.suspicions}
        untouched = optimizer is None or not optimizer.state
        found[build.__name__] = (messages, str(report), report.to_json(), untouched)
        dist.barrier()
    return found
