"""Starts the ranks of a program as forks of this process, which has imported torch."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

LIMIT = 150  # seconds that one run may take
_lifted: Callable[[], contextlib.AbstractContextManager[None]]


@dataclass
class Run:
    """What one run left."""

    out: Path
    failed: str
    seconds: float


def prepare(root: Path) -> None:
    """Import torch, once for all ranks."""
    global _lifted
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path.append(str(root / "shim"))
    import torch
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401

    _lifted = runpy.run_path(str(root / "tests" / "parity" / "cpu.py"))["fsdp1_on_cpu"]


def release() -> str:
    """The release of torch that the programs run on."""
    import torch

    return ".".join(torch.__version__.split(".")[:2])


def forked(job: Callable[[], object]) -> int:
    """The process that does a job, and nothing else."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        job()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(program: Any, arguments: list[str], tree: Path, place: Path, observed: Path | None = None) -> Run:
    """Train on all ranks; what failed is empty if nothing did. ``observed``: a folder for what the ranks show."""
    out = place / "out"
    out.mkdir(parents=True)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    began = time.monotonic()
    pids = {
        forked(lambda r=r: _rank(r, program, arguments, tree, out, port, place / f"rank{r}.log", observed)): r
        for r in range(program.ranks)
    }
    failed = ""
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG)
        late = time.monotonic() - began > LIMIT
        if pid:
            rank = pids.pop(pid)
            if status and not failed:
                time.sleep(0.5)
                failed = f"rank {rank}: {_last(place / f'rank{rank}.log')}"
        elif late and not failed:
            failed = f"not done after {LIMIT} seconds"
        if failed:
            for other in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
        if not pid:
            time.sleep(0.02)
    return Run(out, failed, time.monotonic() - began)


def _last(log: Path) -> str:
    lines = [text for text in log.read_text(errors="replace").splitlines() if text.strip()]
    errors = [text for text in lines if text[:1].isalpha() and "Error" in text.partition(":")[0]]
    return (errors or lines or ["no output"])[-1][:300]


def _rank(
    rank: int, program: Any, arguments: list[str], tree: Path, out: Path, port: int, log: Path, observed: Path | None
) -> None:
    handle = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(program.ranks), LOCAL_WORLD_SIZE=str(program.ranks),
        GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), STRANGER_OUT=str(out),
    )  # fmt: skip
    os.chdir(tree)
    import torch

    torch.set_num_threads(1)
    with _lifted(), _devices(program.devices_per_node), ordered_sums(program.ranks), _observed(observed, tree):
        if program.module:
            sys.path[0] = str(tree)
            sys.argv = [program.module, *arguments]
            runpy.run_module(program.module, run_name="__main__", alter_sys=True)
        else:
            script = tree / program.script
            sys.path[0] = str(script.parent)
            sys.argv = [program.script, *arguments]
            runpy.run_path(str(script), run_name="__main__")
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@contextlib.contextmanager
def _observed(out: Path | None, tree: Path) -> Iterator[None]:
    if out is None:
        yield
        return
    from fsdp_migrate.verify.recorder.observing.observer import Observer
    from fsdp_migrate.verify.recorder.orders import Orders

    observer = Observer(Orders(str(out), steps=10**9, observe=str(tree)))
    observer.listen()
    try:
        yield
    finally:
        observer.close()


@contextlib.contextmanager
def _devices(number: int) -> Iterator[None]:
    import torch

    if not number:
        yield
        return
    with mock.patch.object(torch.cpu, "device_count", lambda: number):
        yield


@contextlib.contextmanager
def ordered_sums(world: int) -> Iterator[None]:
    """Add in the order of ranks where more than two add: gloo's order depends on a number's place in its buffer."""
    import torch
    import torch.distributed as dist

    if world <= 2:
        yield
        return
    name = "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
    scatter, reduce = getattr(dist, name), dist.all_reduce

    class Done:
        def wait(self, *_: object) -> bool:
            return True

        def is_completed(self) -> bool:
            return True

    added = (dist.ReduceOp.SUM, dist.ReduceOp.AVG)  # FSDP2 asks for a mean where FSDP1 divides by itself

    def total(tensor: torch.Tensor, op: Any, group: Any) -> torch.Tensor:
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor.contiguous(), group=group)
        for part in parts[1:]:
            parts[0] += part
        return parts[0] / len(parts) if op == dist.ReduceOp.AVG else parts[0]

    def all_reduce(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        if op not in added or not tensor.is_floating_point() or dist.get_world_size(group) <= 2:
            return reduce(tensor, op, group, async_op)
        tensor.copy_(total(tensor, op, group))
        return Done() if async_op else None

    def reduce_scatter(
        output: Any,
        input: Any,  # noqa: A002
        op: Any = dist.ReduceOp.SUM,
        group: Any = None,
        async_op: bool = False,
    ) -> Any:
        if op not in added or dist.get_world_size(group) <= 2:
            return scatter(output, input, op, group, async_op)
        rank = dist.get_rank(group)
        whole = total(input, op, group).view(-1)
        output.copy_(whole[rank * output.numel() : (rank + 1) * output.numel()].view_as(output))
        return Done() if async_op else None

    with (
        mock.patch.object(dist, "all_reduce", all_reduce),
        mock.patch.object(dist, name, reduce_scatter),
    ):
        yield
