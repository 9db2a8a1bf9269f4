"""Gradients on the CPU whose group reduces GPU tensors alone, and the group that a rewrite starts in its place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.pool import Pool, WorkerError


def clipped(rank: int, world_size: int, backend: str) -> tuple[float, float, list[float]]:
    """On a worker: the norm that torch's function returns, FSDP1's sum of the same squares, and the clipped shard."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = DeviceMesh.from_group(dist.new_group(backend=backend), "cpu")
    torch.manual_seed(rank)
    shard = torch.randn(3, 4)
    squares = shard.square().sum()
    dist.all_reduce(squares)

    def placed(values: torch.Tensor) -> Any:
        return DTensor.from_local(values, mesh, [Shard(0)], run_check=False)

    parameter = torch.nn.Parameter(placed(torch.zeros(3, 4)))
    parameter.grad = placed(shard.clone())
    norm = torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    total: Any = norm
    local: Any = parameter.grad
    return total.full_tensor().item(), squares.sqrt().item(), local.to_local().flatten().tolist()


def test_a_group_for_both_kinds_of_tensors_clips_by_the_global_norm(pool: Pool) -> None:
    for norm, expected, shard in pool.run(clipped, 2, "cpu:gloo,cuda:gloo"):
        assert norm == pytest.approx(expected, rel=1e-6)  # The squares are added up in another order.
        assert max(map(abs, shard)) < 1.0


def test_a_group_for_gpu_tensors_alone_does_not(pool: Pool) -> None:
    with pytest.raises(WorkerError, match="No backend type associated with device type cpu"):
        pool.run(clipped, 2, "cuda:gloo")
