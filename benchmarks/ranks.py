"""Fresh processes, one for each rank, which run a job together and send back what it returns."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import tempfile
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpus import take_gpu

KIB = 1024


def on_all_ranks(ranks: int, kind: str, job: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``job(device, *arguments)`` on each of ``ranks`` ranks, on devices of a ``kind``, "cpu" or "cuda".

    Raises:
        SystemExit: a rank failed. Its error is on stderr.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        started = []
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            place = (rank, ranks, kind, f"{directory}/store")
            process = context.Process(target=_serve, args=(place, theirs, job, arguments))
            process.start()
            theirs.close()
            started.append((process, ours))
        try:
            return [ours.recv() for _, ours in started]
        except EOFError:
            for process, _ in started:
                # The one that failed ends by itself and prints its error; the others wait for it in vain.
                process.join(20)
                process.terminate()
            raise SystemExit("a rank ended without a result; its error is above") from None
        finally:
            for process, ours in started:
                process.join(60)
                ours.close()


def _serve(
    place: tuple[int, int, str, str], results: Connection, job: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    rank, ranks, kind, store = place
    # Two ranks share the processors of a small machine, and threads of one would wait for those of the other.
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    device = take_gpu(rank) if kind == "cuda" else torch.device("cpu")
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks
    )
    results.send(job(device, *arguments))
    dist.destroy_process_group()


def peak_bytes(device: torch.device) -> int:
    """The most memory so far: of torch's allocator on CUDA, resident in this process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
