"""Measures the machine that it runs on, for ``fsdp-migrate tune --machine``: every rank is started with a path.

torchrun --nproc-per-node 8 -m fsdp_compat.preflight.measured_machine ours.toml
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

_TIMES = 7


def main(target: str) -> None:
    """Write the file on rank 0.

    :raises SystemExit: one rank alone has no links.
    """
    is_cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if is_cuda else "gloo")
    local, ranks = int(os.environ["LOCAL_WORLD_SIZE"]), dist.get_world_size()
    if ranks < 2:
        raise SystemExit("links are measured between ranks: start two or more")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if is_cuda else torch.device("cpu")
    if is_cuda:
        torch.cuda.set_device(device)
    lines = ["[measured]", f'source = "measured on {_described(device)}, torch {torch.__version__}"']
    speeds = ", ".join(f"{name} = {_flops(getattr(torch, name), device):.3e}" for name in _dtypes(device))
    lines += [f"flops = {{ {speeds} }}", f"memory_gib = {_memory(device, local):.1f}", f"ranks_per_node = {local}"]
    lines += [f"overlaps = {str(is_cuda).lower()}", f"copies = {_copies(device):.3e}"]
    nodes = ranks // local
    inside = [list(range(node * local, (node + 1) * local)) for node in range(nodes)]
    between = [list(range(first, ranks, local)) for first in range(local)]
    links = [("inside", inside)] if local > 1 else [("inside", between)]
    for name, groups in [*links, ("between", between)] if local > 1 and nodes > 1 else links:
        lines.append(f"{name} = {{ {_link(groups, device)} }}")
    if dist.get_rank() == 0:
        Path(target).write_text("\n".join(lines) + "\n", encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The median of several runs, without the first."""
    taken = []
    for _ in range(_TIMES + 1):
        _settle(device)
        began = time.perf_counter()
        work()
        _settle(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _dtypes(device: torch.device) -> tuple[str, ...]:
    return ("float32", "bfloat16", "float16") if device.type == "cuda" else ("float32", "bfloat16")


def _flops(dtype: torch.dtype, device: torch.device) -> float:
    """Of the product of two matrices."""
    size = 8192 if device.type == "cuda" else 512
    one = torch.ones(size, size, dtype=dtype, device=device)
    return 2 * size**3 / _seconds(lambda: one @ one, device)


def _copies(device: torch.device) -> float:
    one = torch.ones(2**28 if device.type == "cuda" else 2**24, dtype=torch.uint8, device=device)
    other = torch.empty_like(one)
    return one.nbytes / _seconds(lambda: other.copy_(one), device)


def _memory(device: torch.device, local: int) -> float:
    """Of one rank, in GiB."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / 2**30
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 / local


def _link(groups: list[list[int]], device: torch.device) -> str:
    """Latency by a small gather, bandwidth by what a large one takes beyond it."""
    made = [dist.new_group(ranks) for ranks in groups]
    group = next(one for one, ranks in zip(made, groups, strict=True) if dist.get_rank() in ranks)
    ranks = dist.get_world_size(group)

    def gather(size: int) -> float:
        own = torch.ones(size // ranks, dtype=torch.uint8, device=device)
        whole = torch.empty(size // ranks * ranks, dtype=torch.uint8, device=device)
        return _seconds(lambda: dist.all_gather_into_tensor(whole, own, group=group), device)

    large = 2**28 if device.type == "cuda" else 2**24
    latency, taken = gather(2**12), gather(large)
    # Where a loaded machine takes longer for the small one, both are what the large one takes.
    beyond = max(taken - latency, taken / 10)
    return f"bandwidth = {large * (ranks - 1) / ranks / beyond:.3e}, latency = {latency:.3e}"


def _described(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{os.cpu_count()} cores"


if __name__ == "__main__":
    main(sys.argv[1])
