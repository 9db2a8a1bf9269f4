"""What fsdp_compat costs: a training step under the shim, under fully_shard written by hand, and under real FSDP1.

    python benchmarks/shim_overhead.py [--rounds 100] [--layers 4] [--output benchmarks/shim_overhead.json]

Trains a small transformer with AdamW and gradient clipping on two processes, in fp32: with gloo on the CPU, one thread
each, or with NCCL where there are at least two CUDA devices. One step is forward, backward, clipping, optimizer.

- Time: all three are trained in the same two processes, in short blocks that take turns, and every round begins with
  another of them, so that what else runs on the machine meets all alike. Wall seconds, and CPU seconds of a process;
  the slower rank counts. A ratio is the median over rounds of the ratio of two blocks, its quartiles beside it.
- Calls: functions that Python calls in one step, C functions among them. Neither the machine nor its load changes these
  numbers: where they are equal, the shim adds nothing.
- Memory: fresh processes train one implementation each, of a wider model, so that it outweighs the code. On CUDA the
  peak of torch's allocator, on the CPU the peak resident set (``ru_maxrss``) less what was resident before the model
  was built; the greater of the two ranks. There malloc gives each tensor from 64 KiB on pages of its own, as it would
  else keep some of what was freed, other ones each time.
- Collectives: those of one forward and backward, counted by ``CommDebugMode``. Shim and hand-written must make the
  same, and all three must find the same losses bit for bit, or the script fails: it would compare different work.

Prints JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor.debug import CommDebugMode

import fsdp_compat

WORLD_SIZE = 2
VOCABULARY = 512
KIB = 1024
MAX_NORM = 1.0


@dataclass(frozen=True)
class Shape:
    """Of the model and of one rank's batch."""

    layers: int
    width: int
    length: int
    batch: int


class Block(nn.Module):
    """Attention and feed-forward, each with its norm before it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = self.qkv(self.norm1(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Embedding, blocks, norm and head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(Block(shape.width) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class Training:
    """One implementation's model, optimizer and data."""

    def __init__(self, implementation: str, shape: Shape, device: torch.device) -> None:
        torch.manual_seed(0)
        self.model, self._clip = IMPLEMENTATIONS[implementation](Transformer(shape).to(device), device)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._generator = torch.Generator().manual_seed(dist.get_rank())
        self._size = (shape.batch, shape.length)
        self._device = device

    def forward_backward(self) -> torch.Tensor:
        """The loss, with gradients left behind."""
        batch = torch.randint(VOCABULARY, self._size, generator=self._generator).to(self._device)
        loss = nn.functional.cross_entropy(self.model(batch).flatten(0, 1), batch.roll(1, dims=1).flatten())
        loss.backward()
        return loss.detach()

    def step(self, *, clip: bool = True) -> torch.Tensor:
        """The loss of one whole step."""
        loss = self.forward_backward()
        if clip:
            self._clip()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss

    def calls(self) -> dict[str, int]:
        """How many functions each part of a step calls in this thread, which on the CPU is all of them."""
        parts = {"forward_backward": self.forward_backward, "clip": self._clip, "optimizer": self._optimizer.step}
        counts = {name: _calls_of(part) for name, part in parts.items()}
        self._optimizer.zero_grad()
        return counts

    def collectives(self) -> dict[str, int]:
        """How often which collective runs in a forward and a backward."""
        with CommDebugMode() as counter:
            self.forward_backward()
        self._optimizer.zero_grad()
        return {str(name): count for name, count in sorted(counter.get_comm_counts().items(), key=str) if count}


def _calls_of(function: Callable[[], object]) -> int:
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def by_shim(model: Any, device: torch.device) -> tuple[nn.Module, Callable[[], object]]:
    """FSDP1's constructor, of fsdp_compat."""
    sharded = fsdp_compat.FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device)
    return sharded, functools.partial(sharded.clip_grad_norm_, MAX_NORM)


def by_hand(model: Any, device: torch.device) -> tuple[nn.Module, Callable[[], object]]:
    """FSDP2 as its documentation has it."""
    mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, lambda: nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM).full_tensor()


def by_fsdp1(model: Any, device: torch.device) -> tuple[nn.Module, Callable[[], object]]:
    """The real one."""
    wrapped = FSDP1(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device, use_orig_params=True)
    return wrapped, functools.partial(wrapped.clip_grad_norm_, MAX_NORM)


IMPLEMENTATIONS: dict[str, Callable[[nn.Module, torch.device], tuple[nn.Module, Callable[[], object]]]] = {
    "shim": by_shim,
    "by_hand": by_hand,
    "fsdp1": by_fsdp1,
}


@dataclass(frozen=True)
class Told:
    """What one rank measured, by implementation."""

    blocks: dict[str, list[dict[str, float]]]
    calls: dict[str, dict[str, int]]
    collectives: dict[str, dict[str, int]]


def time_in_turns(device: torch.device, shape: Shape, rounds: int, steps: int) -> Told:
    """Train all three and compare. Fails if they do not do the same work."""
    trainings = {name: Training(name, shape, device) for name in IMPLEMENTATIONS}
    for _ in range(3):
        # Without clipping: FSDP1 adds squares up in another order.
        losses = {name: training.step(clip=False).item() for name, training in trainings.items()}
        if len(set(losses.values())) != 1:
            raise SystemExit(f"the implementations train differently: {losses}")
    collectives = {name: training.collectives() for name, training in trainings.items()}
    if collectives["shim"] != collectives["by_hand"]:
        raise SystemExit(f"the implementations communicate differently: {collectives}")
    for training in trainings.values():
        # DTensor decides once per operator and shape how to shard, which takes long.
        training.step()
    calls = {name: training.calls() for name, training in trainings.items()}
    names = list(IMPLEMENTATIONS)
    blocks: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            dist.barrier()
            times = [_timed(trainings[name].step, device) for _ in range(steps)]
            wall, cpu = (statistics.median(column) for column in zip(*times, strict=True))
            blocks[name].append({"wall_s": wall, "cpu_s": cpu})
    return Told(blocks, calls, collectives)


def _timed(step: Callable[[], object], device: torch.device) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - wall, time.process_time() - cpu


def peak_memory(device: torch.device, shape: Shape, implementation: str) -> float:
    """MiB at the peak of building and of three steps in this process, which must be a fresh one."""
    before = _peak(device)
    training = Training(implementation, shape, device)
    for _ in range(3):
        training.step()
    return (_peak(device) - before) / KIB**2


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else KIB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def serve(rank: int, store: str, results: Connection, job: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """One rank's process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    device = torch.device("cuda", rank) if _on_cuda() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", init_method=f"file://{store}", rank=rank, world_size=WORLD_SIZE
    )
    results.send(job(device, *arguments))
    dist.destroy_process_group()


def on_all_ranks(job: Callable[..., Any], *arguments: Any) -> list[Any]:
    """``job(device, *arguments)`` in a fresh process per rank. Fails if one of them does."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory:
        started = []
        for rank in range(WORLD_SIZE):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=serve, args=(rank, f"{directory}/store", theirs, job, arguments))
            process.start()
            theirs.close()
            started.append((process, ours))
        try:
            found = [ours.recv() for _, ours in started]
        except EOFError:
            raise SystemExit("a rank ended without a result; its error stands above") from None
        finally:
            for process, ours in started:
                process.join(60)
                ours.close()
    return found


def _on_cuda() -> bool:
    return torch.cuda.is_available() and torch.cuda.device_count() >= WORLD_SIZE


def slower_of(ranks: list[dict[str, float]]) -> dict[str, float]:
    """A step takes as long as its slower rank."""
    return {key: max(rank[key] for rank in ranks) for key in ranks[0]}


def ratio(rounds: dict[str, list[dict[str, float]]], over: str, key: str) -> dict[str, float]:
    """Median and quartiles, over rounds, of the shim's time against another's."""
    found = [ours[key] / theirs[key] for ours, theirs in zip(rounds["shim"], rounds[over], strict=True)]
    low, middle, high = statistics.quantiles(found, n=4)
    return {"median": round(middle, 4), "low": round(low, 4), "high": round(high, 4)}


def measure(shape: Shape, memory_shape: Shape, rounds: int, steps: int) -> dict[str, object]:
    """All measurements, as described above."""
    load_before = os.getloadavg()
    told = on_all_ranks(time_in_turns, shape, rounds, steps)
    merged = {
        name: [slower_of(list(ranks)) for ranks in zip(*(rank.blocks[name] for rank in told), strict=True)]
        for name in IMPLEMENTATIONS
    }
    # Read by the C library when a process starts; no effect on the allocator of CUDA.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(64 * KIB)
    peaks = {name: max(on_all_ranks(peak_memory, memory_shape, name)) for name in IMPLEMENTATIONS}
    return {
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "machine": {
            "device": torch.cuda.get_device_name(0) if _on_cuda() else "cpu",
            "backend": "nccl" if _on_cuda() else "gloo",
            "cores": os.cpu_count(),
            "load_average_before": [round(load, 2) for load in load_before],
            "load_average_after": [round(load, 2) for load in os.getloadavg()],
        },
        "model": _described(shape),
        "ranks": WORLD_SIZE,
        "rounds": rounds,
        "steps_per_block": steps,
        "step_ms": {
            name: {
                key.replace("_s", ""): round(1000 * statistics.median(block[key] for block in blocks), 2)
                for key in ("wall_s", "cpu_s")
            }
            for name, blocks in merged.items()
        },
        "ratios": {
            f"shim_to_{over}": {key.replace("_s", ""): ratio(merged, over, key) for key in ("wall_s", "cpu_s")}
            for over in ("by_hand", "fsdp1")
        },
        "calls": told[0].calls,
        "collectives": told[0].collectives,
        "memory_model": _described(memory_shape),
        "peak_mib": {name: round(peak, 1) for name, peak in peaks.items()},
        "peak_is": "torch.cuda.max_memory_allocated" if _on_cuda() else "ru_maxrss less that before the model",
    }


def _described(shape: Shape) -> dict[str, int]:
    return {"parameters": sum(param.numel() for param in Transformer(shape).parameters()), **vars(shape)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="how often the three take turns, at least 2")
    parser.add_argument("--steps", type=int, default=2, help="steps of a block")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="a multiple of 4, the number of heads")
    parser.add_argument("--memory-width", type=int, default=512, help="of the model whose memory is measured")
    parser.add_argument("--length", type=int, default=64, help="tokens in a sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank")
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("--rounds must be at least 2")
    shape = Shape(options.layers, options.width, options.length, options.batch)
    memory_shape = dataclasses.replace(shape, width=options.memory_width)
    text = json.dumps(measure(shape, memory_shape, options.rounds, options.steps), indent=2) + "\n"
    if options.output:
        options.output.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
