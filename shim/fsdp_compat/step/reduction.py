"""Gradients have to be averaged: gloo's reduce-scatter adds them up instead in some versions of torch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from fsdp_compat.torch_.backports import divide_around_sums
from fsdp_compat.torch_.versions import GLOO_AVERAGES, HAS_FORCED_SUM


def averages(mesh: DeviceMesh) -> bool:
    """Whether ``mesh``'s backend averages where FSDP2 asks it to, found out by trying. A collective over ``mesh``."""
    groups = [mesh.get_group(dim) for dim in range(mesh.ndim)]
    # A group that init_process_group() made without being told a backend does not tell one, but has gloo on the CPU.
    on_gloo = [group for group in groups if mesh.device_type == "cpu" or dist.get_backend(group) == "gloo"]
    if GLOO_AVERAGES or not on_gloo:
        return True
    return HAS_FORCED_SUM and all(_averages(group) for group in on_gloo)


def _averages(group: dist.ProcessGroup) -> bool:
    size = dist.get_world_size(group)
    result = torch.empty(1)
    dist.reduce_scatter_tensor(result, torch.ones(size), op=dist.ReduceOp.AVG, group=group)
    return result.item() == 1.0


def divide_explicitly(unit: nn.Module) -> None:
    """Make ``unit`` reduce its gradients by a sum and a division: they would be too large by the number of ranks."""
    if HAS_FORCED_SUM:
        assert isinstance(unit, FSDPModule)
        unit.set_force_sum_reduction_for_comms(True)
    else:
        divide_around_sums()
