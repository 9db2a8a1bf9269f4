"""Gradients have to be averaged: gloo's reduce-scatter adds them up instead in some versions of torch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule

from .versions import GLOO_AVERAGES, HAS_FORCED_SUM, TORCH


def averages(mesh: DeviceMesh) -> bool:
    """Whether ``mesh``'s backend averages where FSDP2 asks it to, found out by trying. A collective over ``mesh``."""
    if GLOO_AVERAGES:
        return True
    for group in (mesh.get_group(dim) for dim in range(mesh.ndim) if mesh.size(dim) > 1):
        if dist.get_backend(group) == "gloo":
            size = dist.get_world_size(group)
            result = torch.empty(1)
            dist.reduce_scatter_tensor(result, torch.ones(size), op=dist.ReduceOp.AVG, group=group)
            if result.item() != 1.0:
                return False
    return True


def divide_explicitly(unit: nn.Module) -> None:
    """Make ``unit`` reduce its gradients by a sum and a division.

    Raises RuntimeError where torch cannot: its gradients would be too large by the number of ranks, in silence.
    """
    if not HAS_FORCED_SUM:
        raise RuntimeError(
            f"torch {TORCH} adds gradients up on gloo where FSDP2 averages them, so training would diverge from FSDP1. "
            "Use torch 2.8 or newer, or another backend than gloo."
        )
    assert isinstance(unit, FSDPModule)
    unit.set_force_sum_reduction_for_comms(True)
