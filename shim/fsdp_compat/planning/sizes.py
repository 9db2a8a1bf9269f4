"""What a unit will weigh once it is sharded, from shapes alone: no process group, no memory."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from fsdp_compat.planning.mesh import compute_device, ranks_per_node
from fsdp_compat.planning.options import HYBRID, Options
from fsdp_compat.vocabulary import ShardingStrategy


@dataclass(frozen=True)
class Shards:
    """Into how many parts a unit's parameters are cut, and what says so."""

    count: int
    source: str


@dataclass(frozen=True)
class UnitBytes:
    """Bytes of one unit's parameters.

    ``full``: whole, in their own dtypes. ``per_rank``: one rank's shards in their own dtypes, padded to equal size as
    FSDP2 pads them, the same on every rank. ``gathered``: what a gather puts beside them for as long as the unit
    computes, in the dtype that it computes in, padding included. The last two and ``shards`` are None where
    nothing says how many ranks there will be.
    """

    full: int
    per_rank: int | None
    gathered: int | None
    shards: Shards | None

    @staticmethod
    def of(params: Iterable[nn.Parameter], param_dtype: torch.dtype | None, shards: Shards | None) -> UnitBytes:
        params = list(params)
        full = sum(param.numel() * param.element_size() for param in params)
        if shards is None:
            return UnitBytes(full, None, None, None)
        padded = [(_padded_shard(_local_shape(param), shards.count), param.dtype) for param in params]
        return UnitBytes(
            full=full,
            per_rank=sum(numel * dtype.itemsize for numel, dtype in padded),
            gathered=sum(shards.count * numel * _gather_dtype(dtype, param_dtype).itemsize for numel, dtype in padded),
            shards=shards,
        )


def known_world_size(given: int | None, options: Options) -> Shards | None:
    """How many ranks the default group has or will have: as ``given``, as initialised, or as torchrun says.

    Raises TypeError if ``given`` is no int, ValueError if it is no number of ranks, or if ``options`` say it already.
    """
    if given is not None:
        if isinstance(given, bool) or not isinstance(given, int):
            raise TypeError(f"world_size is the number of ranks, an int, not {given!r}")
        if given < 1:
            raise ValueError(f"world_size is the number of ranks, at least 1, not {given}")
        if options.device_mesh is not None or options.process_group is not None:
            name = "device_mesh" if options.device_mesh is not None else "process_group"
            raise ValueError(f"pass either world_size or {name}, which has its own number of ranks, not both")
        return Shards(given, f"world_size={given}")
    if dist.is_initialized():
        return Shards(dist.get_world_size(), "the default process group")
    launched = os.environ.get("WORLD_SIZE")
    return Shards(int(launched), f"WORLD_SIZE={launched} in the environment") if launched else None


def shards_of(root: nn.Module, options: Options, world: Shards | None, ignored: set[nn.Parameter]) -> Shards | None:
    """Over how many ranks a unit with these ``options`` is sharded, as :class:`MeshBuilder` will have it."""
    mesh, group = options.device_mesh, options.process_group
    if options.strategy is ShardingStrategy.NO_SHARD:
        return Shards(1, "NO_SHARD")
    if mesh is not None:
        return Shards(mesh.size(1 if options.strategy in HYBRID else 0), "device_mesh")
    if group is not None:
        return Shards((group[0] if isinstance(group, tuple) else group).size(), "process_group")
    if options.strategy in HYBRID:
        device_type = compute_device(root, options, ignored).type
        devices: int = torch.get_device_module(device_type).device_count()
        per_node = devices if world is None else ranks_per_node(options, device_type, world.count)
        return Shards(per_node, f"{options.strategy.name} over {per_node} rank(s) of a node")
    return world


def _padded_shard(shape: torch.Size, shards: int) -> int:
    """Elements of the first shard along dim 0, the longest, to which FSDP2 pads the others."""
    return math.ceil(shape[0] / shards) * math.prod(shape[1:]) if shape else 1


def _local_shape(param: nn.Parameter) -> torch.Size:
    # What tensor parallelism has cut already is what FSDP2 shards.
    return param.to_local().shape if isinstance(param, DTensor) else param.shape


def _gather_dtype(own: torch.dtype, param_dtype: torch.dtype | None) -> torch.dtype:
    return param_dtype if param_dtype is not None and own.is_floating_point else own
