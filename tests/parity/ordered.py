"""Sums over more than two processes that do not depend on where in a buffer a number stands."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

from tests.parity.cpu import fsdp1_on_cpu


@contextlib.contextmanager
def sums_in_rank_order() -> Iterator[None]:
    """Let sums of gradients add the ranks' numbers in the order of the ranks.

    gloo adds along a ring that starts elsewhere for each part of a buffer, and FSDP1 and FSDP2 lay out their buffers
    in different ways: from three processes on, both are right and differ in the last bit. The numbers still travel
    over gloo; only the adding is done here.
    """
    import torch.distributed as dist

    with contextlib.ExitStack() as stack:
        for name in ("reduce_scatter_single", "reduce_scatter_tensor"):
            if hasattr(dist, name):
                stack.enter_context(mock.patch.object(dist, name, _reduce_scatter))
        stack.enter_context(mock.patch.object(dist, "all_reduce", _all_reduce(dist.all_reduce)))
        yield


@contextlib.contextmanager
def fsdp1_on_cpu_in_rank_order() -> Iterator[None]:
    """Both :func:`sums_in_rank_order` and :func:`~tests.parity.cpu.fsdp1_on_cpu`."""
    with sums_in_rank_order(), fsdp1_on_cpu():
        yield


def _reduce_scatter(output: Any, input: Any, op: Any = None, group: Any = None, async_op: bool = False) -> None:  # noqa: A002
    import torch.distributed as dist

    total = _sum(input, group, average=op == dist.ReduceOp.AVG)
    output.copy_(total.view(-1).chunk(dist.get_world_size(group))[dist.get_rank(group)].view_as(output))


def _all_reduce(original: Any) -> Any:
    import torch.distributed as dist

    def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        if async_op or op not in (dist.ReduceOp.SUM, dist.ReduceOp.AVG):
            return original(tensor, op, group, async_op)
        tensor.copy_(_sum(tensor, group, average=op == dist.ReduceOp.AVG))
        return None

    return all_reduce


def _sum(tensor: Any, group: Any, *, average: bool) -> Any:
    import torch
    import torch.distributed as dist

    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor.contiguous(), group=group)
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total / len(parts) if average else total
