"""What a training costs under FSDP1, under what ``rewrite`` makes of it, and under the shim.

    python benchmarks/training_costs.py [--variants fp32,bf16] [--output benchmarks/training_costs.json]

Rewrites benchmarks/llama.py to native FSDP2 and to the shim, and trains the three with AdamW and gradient clipping: on
two CPU processes with gloo, or on every CUDA device with NCCL (``--device cuda``). For each variant:

- Time: the three take turns in the same processes, step by step, and every round begins with another of them, so that
  what else runs on the machine meets all alike. Wall and CPU seconds, those of the slower rank. A ratio is the median
  over rounds of the ratio to FSDP1 in the same round, with its quartiles.
- Calls: the functions that Python calls in one step. Neither the machine nor its load changes these numbers.
- Checkpoints: model and AdamW's state, saved and loaded sharded and whole, in turns as well.
- Memory: fresh processes train one of the three each, of a wider model. On CUDA the peak of torch's allocator, on the
  CPU the peak resident set less what was resident before the model was built; the greater of all ranks.
- Collectives: those of one forward and backward, counted by ``CommDebugMode``. The rewritten program and the shim must
  run the same ones, and in fp32 all three must find the same losses bit for bit, or the script fails.

Prints JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor.debug import CommDebugMode

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.conditions import conditions, write  # noqa: E402
from benchmarks.llama import Shape  # noqa: E402
from benchmarks.ranks import KIB, on_all_ranks, peak_bytes  # noqa: E402
from fsdp_migrate.cli import main as fsdp_migrate  # noqa: E402

ARGUMENTS, CHECKPOINTING = (
    "# The arguments of a variant are written here.",
    "# The activation checkpointing of a variant",
)
BF16 = "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16),"
HYBRID = (
    "sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=init_device_mesh("
    "device.type, (2, dist.get_world_size() // 2), mesh_dim_names=('replicate', 'shard')),"
)
CHECKPOINT = "apply_activation_checkpointing(self.model, check_fn=lambda module: isinstance(module, Block))"
#: Arguments of FSDP, and a statement after the wrap.
VARIANTS = {
    "fp32": ("", ""),
    "bf16": (BF16, ""),
    "bf16-checkpointing": (BF16, CHECKPOINT),
    "hybrid": (HYBRID, ""),
    "bf16-offload": (f"{BF16} cpu_offload=CPUOffload(offload_params=True),", ""),
    "bf16-prefetch": (f"{BF16} backward_prefetch=BackwardPrefetch.BACKWARD_PRE, forward_prefetch=True,", ""),
}
#: A program that names it has no units gathered ahead in forward: recomputations would gather them, too.
RECOMPUTES = """\
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import apply_activation_checkpointing
"""
IMPORTS = """\
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
"""
IMPLEMENTATIONS = ("fsdp1", "native", "shim")
CHECKPOINTS = ("save_sharded", "load_sharded", "save_full", "load_full")


def write_programs(folder: Path, variant: str, kind: str) -> None:
    """FSDP1's program, and what the command makes of it, as ``<implementation>/llama.py``.

    Raises:
        SystemExit: the rewrite leaves something to do by hand.
    """
    arguments, statement = VARIANTS[variant]
    text = (ROOT / "benchmarks/llama.py").read_text(encoding="utf-8")
    if kind == "cpu":
        # There FSDP1's state would share the memory that it frees afterwards, and saving it ends the process.
        text = text.replace("offload_to_cpu=True", "offload_to_cpu=False")
    imports = f"{RECOMPUTES if statement else ''}{IMPORTS}"
    lines = []
    for line in text.splitlines():
        marked = ((ARGUMENTS, arguments), (CHECKPOINTING, statement))
        lines += [line.replace(line.strip(), new) if new else line for mark, new in marked if mark in line] or [line]
    text = "\n".join(lines).replace("from torch import nn\n", f"from torch import nn\n{imports}", 1) + "\n"
    for name in IMPLEMENTATIONS:
        file = folder / name / "llama.py"
        file.parent.mkdir()
        file.write_text(text, encoding="utf-8")
        options = {"fsdp1": None, "native": ["--to", "native"], "shim": ["--to", "shim"]}[name]
        if options and fsdp_migrate(["rewrite", "--quiet", "--allow-dirty", *options, str(file)]) != 0:
            raise SystemExit(f"{variant}: rewrite {' '.join(options)} leaves something to do by hand")


def load_program(folder: Path, implementation: str) -> ModuleType:
    """The module of one implementation."""
    name = f"llama_{implementation}"
    spec = importlib.util.spec_from_file_location(name, folder / implementation / "llama.py")
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def _collectives_of(training: Any) -> dict[str, int]:
    with CommDebugMode() as counter:
        training.forward_backward()
    training.optimizer.zero_grad()
    return {str(name): count for name, count in sorted(counter.get_comm_counts().items(), key=str) if count}


def _timed(work: Callable[[], object], device: torch.device) -> dict[str, float]:
    dist.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def _in_turns(rounds: int, work: Callable[[str], dict[str, float]]) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in IMPLEMENTATIONS}
    for turn in range(rounds):
        first = turn % len(IMPLEMENTATIONS)
        for name in IMPLEMENTATIONS[first:] + IMPLEMENTATIONS[:first]:
            found[name].append(work(name))
    return found


def train(device: torch.device, folder: Path, shape: Shape, rounds: int, exact: bool) -> dict[str, Any]:
    """What one rank measures of all three. Fails if they do not do the same work."""
    trainings = {name: load_program(folder, name).Training(shape, device) for name in IMPLEMENTATIONS}
    losses: dict[str, list[float]] = {name: [] for name in IMPLEMENTATIONS}
    for _ in range(3):
        for name, training in trainings.items():
            # Without clipping: FSDP1 adds squares up in another order.
            losses[name].append(training.forward_backward().item())
            training.update()
    if exact and len(set(map(tuple, losses.values()))) != 1:
        raise SystemExit(f"the implementations train differently: {losses}")
    collectives = {name: _collectives_of(training) for name, training in trainings.items()}
    if collectives["shim"] != collectives["native"]:
        raise SystemExit(f"the implementations communicate differently: {collectives}")
    for training in trainings.values():
        # DTensor decides once per operator and shape how to shard, which takes long.
        training.step()
    calls = {}
    for name, training in trainings.items():
        parts = {"forward_backward": training.forward_backward, "clip": training.clip, "update": training.update}
        calls[name] = {part: _calls_of(work) for part, work in parts.items()}
    times = {"step": _in_turns(rounds, lambda name: _timed(trainings[name].step, device))}
    for kind in CHECKPOINTS:

        def work(name: str, kind: str = kind) -> dict[str, float]:
            target = str(folder / name / ("full.pt" if kind.endswith("full") else "sharded"))
            return _timed(lambda: getattr(trainings[name], kind)(target), device)

        # The first one plans what the others reuse.
        _in_turns(1, work)
        times[kind] = _in_turns(max(4, rounds // 4), work)
    same = all(value == losses["fsdp1"] for value in losses.values())
    return {"times": times, "calls": calls, "collectives": collectives, "same_losses": same}


def peak_memory(device: torch.device, folder: Path, shape: Shape, implementation: str) -> float:
    """MiB at the peak of building and of three steps in this process, which must be a fresh one."""
    program = load_program(folder, implementation)
    before = peak_bytes(device)
    training = program.Training(shape, device)
    for _ in range(3):
        training.step()
    return (peak_bytes(device) - before) / KIB**2


def summarised(ranks: list[dict[str, list[dict[str, float]]]], kind: str) -> dict[str, Any]:
    """Median milliseconds of the slower rank, and each implementation's ratio to FSDP1."""
    merged = {
        name: [max(turn[kind] for turn in turns) for turns in zip(*(rank[name] for rank in ranks), strict=True)]
        for name in IMPLEMENTATIONS
    }
    ratios = {}
    for name in ("native", "shim"):
        found = [ours / theirs for ours, theirs in zip(merged[name], merged["fsdp1"], strict=True)]
        low, middle, high = (round(value, 3) for value in statistics.quantiles(found, n=4))
        ratios[name] = {"median": middle, "low": low, "high": high}
    milliseconds = {name: round(1000 * statistics.median(values), 2) for name, values in merged.items()}
    return {"ms": milliseconds, "to_fsdp1": ratios}


def measure(variant: str, kind: str, ranks: int, shape: Shape, memory_shape: Shape, rounds: int) -> dict[str, Any]:
    """All measurements of one variant, as described above."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_programs(folder, variant, kind)
        load_before = os.getloadavg()
        _progress(f"{variant}: training in turns")
        told = on_all_ranks(ranks, kind, train, folder, shape, rounds, variant in ("fp32", "hybrid"))
        # Read by the C library when a process starts: tensors from 64 KiB on get pages which are given back.
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(64 * KIB)
        peaks = {}
        for name in IMPLEMENTATIONS:
            _progress(f"{variant}: memory of {name}")
            peaks[name] = max(on_all_ranks(ranks, kind, peak_memory, folder, memory_shape, name))
        del os.environ["MALLOC_MMAP_THRESHOLD_"]
    times = {
        work: {clock: summarised([rank["times"][work] for rank in told], clock) for clock in ("wall", "cpu")}
        for work in told[0]["times"]
    }
    return {
        "load_average": [round(load_before[0], 1), round(os.getloadavg()[0], 1)],
        "same_losses": told[0]["same_losses"],
        "times": times,
        "calls": told[0]["calls"],
        "collectives": told[0]["collectives"],
        "peak_mib": {name: round(peak, 1) for name, peak in peaks.items()},
        "peak_to_fsdp1": {name: round(peaks[name] / peaks["fsdp1"], 3) for name in ("native", "shim")},
    }


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _described(shape: Shape, program: ModuleType) -> dict[str, int]:
    return {
        "parameters": sum(param.numel() for param in program.Llama(shape).parameters()),
        **dataclasses.asdict(shape),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", default="fp32,bf16,bf16-checkpointing,hybrid", help=f"of {', '.join(VARIANTS)}")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--ranks", type=int, help="default: 2 on the CPU, all devices on CUDA; hybrid takes an even number"
    )
    parser.add_argument("--rounds", type=int, default=60, help="how often the three take turns, at least 4")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128, help="a multiple of 4, the number of heads")
    parser.add_argument("--memory-width", type=int, default=512, help="of the model whose memory is measured")
    parser.add_argument("--length", type=int, default=64, help="tokens in a sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences per rank")
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    variants = options.variants.split(",")
    if unknown := set(variants) - set(VARIANTS):
        parser.error(f"unknown variants: {', '.join(sorted(unknown))}")
    if options.rounds < 4:
        parser.error("--rounds must be at least 4")
    ranks = options.ranks or (torch.cuda.device_count() if options.device == "cuda" else 2)
    shape = Shape(options.layers, options.width, options.length, options.batch, options.vocabulary)
    memory_shape = dataclasses.replace(shape, width=options.memory_width)
    from benchmarks import llama

    result = {
        **conditions("torch", device=torch.cuda.get_device_name(0) if options.device == "cuda" else ""),
        "backend": "nccl" if options.device == "cuda" else "gloo",
        "ranks": ranks,
        "rounds": options.rounds,
        "model": _described(shape, llama),
        "memory_model": _described(memory_shape, llama),
        "variants": {
            name: measure(name, options.device, ranks, shape, memory_shape, options.rounds) for name in variants
        },
    }
    write(result, options.output)


if __name__ == "__main__":
    main()
