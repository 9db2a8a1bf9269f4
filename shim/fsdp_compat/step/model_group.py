"""Over which ranks a model is sharded."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn

from fsdp_compat.planning import records
from fsdp_compat.torch_.param_groups import param_groups, reduction_groups
from fsdp_compat.units import fsdp_modules


def process_group(module: nn.Module) -> dist.ProcessGroup:
    """FSDP1's attribute of that name: the ranks among which ``module`` is cut, or under NO_SHARD those that copy it.

    Gathered or not, sharded by fsdp_compat or by ``fully_shard`` itself, which takes shards of a single rank for
    NO_SHARD's. A module that manages no parameters itself has the group of the units inside it. One without any has its
    own attribute of that name, as DistributedDataParallel does. Raises AttributeError for other modules, RuntimeError
    where the units inside one have several groups.
    """
    units = [unit for unit in fsdp_modules(module) if records.record_of(unit) is not None or param_groups(unit)]
    if not units:
        own: dist.ProcessGroup = module.process_group  # type: ignore[assignment]
        return own
    groups = [_group_of(unit) for unit in (units[:1] if units[0] is module else units)]
    if len({tuple(dist.get_process_group_ranks(group)) for group in groups}) > 1:
        raise RuntimeError(
            f"{type(module).__name__} manages no parameters itself, and the units in it are sharded over several "
            "process groups: pass one of these units"
        )
    return groups[0]


def group_of_several(module: nn.Module) -> dist.ProcessGroup | None:
    """The :func:`process_group` of a module whose units are sharded over several; None where all have the same."""
    groups = [_group_of(unit) for unit in fsdp_modules(module) if param_groups(unit)]
    several = len({tuple(dist.get_process_group_ranks(group)) for group in groups}) > 1
    return process_group(module) if several else None


def _group_of(unit: nn.Module) -> dist.ProcessGroup:
    record = records.record_of(unit)
    return reduction_groups(unit).reduced_over if record is None else records.process_group(record)
