"""What FSDP1's instances say about themselves: group, ranks, strategy, device and the other arguments of the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import nn

from fsdp_compat.planning.options import HYBRID
from fsdp_compat.planning.records import UnitRecord, process_group, record_of
from fsdp_compat.vocabulary import CPUOffload, MixedPrecision, ShardingStrategy


class Attribute:
    """One of FSDP1's attributes, for units that the shim has made. What the module itself has of that name wins."""

    def __init__(self, read: Callable[[UnitRecord], Any]) -> None:
        self._read = read
        self.__doc__ = read.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    # Without __set__ the module's own attributes come first; its parameters, buffers and children need the look below.
    def __get__(self, module: nn.Module | None, owner: type) -> Any:
        if module is None:
            return self
        for own in (module._parameters, module._buffers, module._modules):
            if self._name in own:
                return own[self._name]
        record = record_of(module)
        if record is None:
            raise AttributeError(f"{owner.__name__} was not sharded by fsdp_compat: it has no {self._name}")
        return self._read(record)


def replicating_group(record: UnitRecord) -> dist.ProcessGroup:
    """The group over which a hybrid strategy replicates; the others have none."""
    if record.options.strategy not in HYBRID:
        raise AttributeError(f"{record.options.strategy} replicates over no group: it has no _inter_node_pg")
    given = record.options.process_group
    return given[1] if isinstance(given, tuple) else record.mesh.get_group(0)


def rank(record: UnitRecord) -> int:
    """This process's rank in ``process_group``."""
    return dist.get_rank(process_group(record))


def world_size(record: UnitRecord) -> int:
    """The size of ``process_group``."""
    return dist.get_world_size(process_group(record))


def sharding_strategy(record: UnitRecord) -> ShardingStrategy:
    """As given, FULL_SHARD without any; a single rank has NO_SHARD, whatever was given."""
    return ShardingStrategy.NO_SHARD if world_size(record) == 1 else record.options.strategy


ATTRIBUTES: dict[str, Attribute] = {
    **{function.__name__: Attribute(function) for function in (process_group, rank, world_size, sharding_strategy)},
    "_inter_node_pg": Attribute(replicating_group),
    "cpu_offload": Attribute(lambda record: record.options.cpu_offload or CPUOffload()),
    "mixed_precision": Attribute(lambda record: record.options.mixed_precision or MixedPrecision()),
    "backward_prefetch": Attribute(lambda record: record.options.backward_prefetch),
    "forward_prefetch": Attribute(lambda record: record.options.forward_prefetch),
    "limit_all_gathers": Attribute(lambda record: record.options.limit_all_gathers),
    "compute_device": Attribute(lambda record: record.device),
}
