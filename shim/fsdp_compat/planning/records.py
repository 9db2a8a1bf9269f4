"""What a module was sharded with, kept on the module for those who shard around it and for its first forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from fsdp_compat.planning.options import HYBRID, Options
from fsdp_compat.torch_.param_groups import is_nested

_ATTRIBUTE = "_fsdp_compat_unit"


@dataclass(eq=False)
class UnitRecord:
    """``is_root`` turns False once an enclosing module is sharded too."""

    options: Options
    mesh: DeviceMesh
    device: torch.device
    is_root: bool
    cast_inputs_if_nested: bool
    buffer_dtype: torch.dtype | None
    ignored_modules: frozenset[nn.Module]


def record_of(module: nn.Module) -> UnitRecord | None:
    record: UnitRecord | None = module.__dict__.get(_ATTRIBUTE)
    return record


def set_record(module: nn.Module, record: UnitRecord) -> None:
    module.__dict__[_ATTRIBUTE] = record


def process_group(record: UnitRecord) -> dist.ProcessGroup:
    """The group that shards; for NO_SHARD the one that replicates."""
    given = record.options.process_group
    if isinstance(given, tuple):
        return given[0]
    if given is not None:
        return given
    return record.mesh.get_group(record.mesh.ndim - 1 if record.options.strategy in HYBRID else 0)


def is_root(module: nn.Module) -> bool:
    """Whether no sharded module is known to lie around ``module``."""
    record = record_of(module)
    return (record is None or record.is_root) and not (isinstance(module, FSDPModule) and is_nested(module))


def check_root(module: nn.Module, message: str) -> None:
    """Raise RuntimeError with ``message`` if ``module`` is a unit inside another one."""
    if not is_root(module):
        raise RuntimeError(message)
