"""What a preflight looks at: the units of a model, FSDP1's or FSDP2's, and its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from fsdp_compat.torch_.param_groups import param_groups
from fsdp_compat.units import clean_name


@dataclass(frozen=True)
class UnitFacts:
    """One unit. ``numel`` and ``nbytes`` of its whole parameters; ``gathered``: in the dtype that is computed in.

    ``local``: bytes of its shard on this rank, padding included. ``trained``: elements whose gradients are reduced.
    """

    name: str
    kind: str
    module: nn.Module
    numel: int
    nbytes: int
    gathered: int
    local: int
    trained: int
    dtypes: tuple[torch.dtype, ...]
    param_dtype: torch.dtype | None
    reduce_dtype: torch.dtype | None
    output_dtype: torch.dtype | None
    shards: int
    replicas: int
    reshard: bool
    parameters: tuple[str, ...]


@dataclass(frozen=True)
class Facts:
    """A model before its first step, as one rank sees it. ``parameters`` by clean name, tied ones under their first."""

    model: nn.Module
    optimizer: Optimizer | None
    sample: tuple[torch.Tensor, ...]
    units: tuple[UnitFacts, ...]
    parameters: dict[str, torch.Tensor]
    rank: int
    world: int

    @property
    def root(self) -> UnitFacts | None:
        return next((unit for unit in self.units if not unit.name), None)


def look(model: nn.Module, optimizer: Optimizer | None, sample: tuple[torch.Tensor, ...]) -> Facts:
    """Read everything off the model; no collective, and nothing is changed."""
    dist = torch.distributed
    started = dist.is_available() and dist.is_initialized()
    return Facts(
        model,
        optimizer,
        sample,
        tuple(_units(model)),
        _parameters(model),
        dist.get_rank() if started else 0,
        dist.get_world_size() if started else 1,
    )


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The elements on this rank."""
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _parameters(model: nn.Module) -> dict[str, torch.Tensor]:
    """The sharded parameters also while a unit is gathered."""
    found: dict[str, torch.Tensor] = {clean_name(name): param for name, param in model.named_parameters()}
    names = {id(module): name for name, module in model.named_modules()}
    for module in model.modules():
        for group in param_groups(module) if isinstance(module, FSDPModule) else ():
            for param in group.fsdp_params:
                info = param._module_info
                shared = zip(info.shared_modules, info.shared_param_names, strict=True)
                places = ((info.module, info.param_name), *shared)
                known = [_join(names.get(id(owner), ""), name) for owner, name in places]
                found[next((name for name in known if name in found), known[0])] = param.sharded_param
    return found


def _join(prefix: str, name: str) -> str:
    return clean_name(f"{prefix}.{name}" if prefix else name)


def _units(model: nn.Module) -> Iterator[UnitFacts]:
    names = {id(module): clean_name(f"{name}.").removesuffix(".") for name, module in model.named_modules()}
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in param_groups(module):
                yield _fsdp2(names[id(module)], module, group, names)
        elif "_fsdp_wrapped_module" in module._modules and getattr(module, "_handle", None) is not None:
            # FSDP1's wrapper, known without its class, which a coming torch may lack.
            yield _fsdp1(names[id(module)], module)


def _fsdp2(name: str, module: nn.Module, group: Any, names: dict[int, str]) -> UnitFacts:
    params = [param.sharded_param for param in group.fsdp_params]
    # Since 2.15 each parameter has a policy of its own, in which param_dtype alone may be another.
    policies = [param.mp_policy if hasattr(param, "mp_policy") else group.mp_policy for param in group.fsdp_params]
    policy, mesh = policies[0], group.mesh_info
    numel = sum(param.numel() for param in params)
    sizes = [None if policy.param_dtype is None else policy.param_dtype.itemsize for policy in policies]
    owners = [
        (names.get(id(param._module_info.module), ""), param._module_info.param_name) for param in group.fsdp_params
    ]
    return UnitFacts(
        name,
        "FSDP2",
        module,
        numel,
        sum(param.numel() * param.element_size() for param in params),
        sum(param.numel() * (size or param.element_size()) for param, size in zip(params, sizes, strict=True)),
        sum(local(param).numel() * param.element_size() for param in params),
        sum(param.numel() for param in params if param.requires_grad),
        tuple(dict.fromkeys(param.dtype for param in params)),
        policy.param_dtype,
        policy.reduce_dtype or policy.param_dtype,
        policy.output_dtype,
        getattr(mesh, "shard_mesh_size", 1),
        getattr(mesh, "replicate_mesh_size", 1),
        group.post_forward_mesh_info is not None,
        tuple(f"{owner}.{own}" if owner else own for owner, own in owners),
    )


def _fsdp1(name: str, module: Any) -> UnitFacts:
    flat, mp = module._handle.flat_param, module.mixed_precision
    numel, strategy = sum(flat._numels), module.sharding_strategy.name
    size = mp.param_dtype.itemsize if mp.param_dtype is not None else flat.element_size()
    groups = [module.process_group, getattr(module, "_inter_node_pg", None)]
    shards, replicas = [group.size() if group is not None else 1 for group in groups]
    if strategy == "NO_SHARD":
        shards, replicas = 1, shards
    return UnitFacts(
        name,
        "FSDP1",
        module,
        numel,
        numel * flat.element_size(),
        numel * size,
        flat.numel() * flat.element_size(),
        numel if flat.requires_grad else 0,
        (flat.dtype,),
        mp.param_dtype,
        mp.reduce_dtype or mp.param_dtype,
        None,
        shards,
        replicas,
        strategy in ("FULL_SHARD", "HYBRID_SHARD"),
        tuple(f"{name}.{fqn}" if name else fqn for fqn in flat._fqns),
    )
