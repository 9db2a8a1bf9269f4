"""What a training costs under FSDP1, as ``rewrite`` migrates it, and in the layout that ``tune`` chooses.

    python benchmarks/tuned.py [--ranks 2,4] [--rounds 5] [--device cuda] [--output benchmarks/tuned.json]

benchmarks/llama.py is rewritten to native FSDP2. One forward and backward under FSDP1 is recorded as ``tune`` records
it, and the fastest layout is taken that needs no more than 0.93 of the memory of the program's own units. Its code, as
``tune`` prints it, stands in a copy of the rewritten program for what shards there. The three train in the same
processes, with AdamW and gradient clipping, and take turns, step by step. Losses before clipping have to be equal bit
for bit on two ranks; on more, gloo adds up parts of a buffer in different orders (docs/numerics.md).

- On the CPU (gloo) collectives take as long as over a slow link, and none hides another (benchmarks/delayed.py). A
  step takes ``wall`` seconds of the clock, which a loaded machine spoils, and ``own``: those of the processor with
  those that the collectives are made to take. Memory is what tensors hold at the most in the third step
  (benchmarks/live_tensors.py).
- On CUDA (NCCL, ranks beyond the GPUs share them) collectives are as fast as they are, and memory is the peak of
  torch's allocator: fresh processes train one of the three each.

A ratio is the median over rounds of the ratio to FSDP1 in the same round, of the slower rank. Prints JSON.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import statistics
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.conditions import conditions, write
from benchmarks.delayed import Delayed
from benchmarks.live_tensors import LiveTensors
from benchmarks.llama import Shape
from benchmarks.ranks import on_all_ranks, peak_bytes
from benchmarks.training_costs import load_program, write_programs
from fsdp_compat.preflight.present_layout import optimizer_costs, present_layout
from fsdp_compat.preflight.timeline import Timeline
from fsdp_migrate.tune.layout_code import code
from fsdp_migrate.tune.machine import Link, Machine, machine
from fsdp_migrate.tune.present import Present, present
from fsdp_migrate.tune.ranking import Ranked, ranking

NAMES = ("fsdp1", "native", "tuned")
#: Gathering a block of the model takes some hundred times the latency, as one of 7 B parameters does between nodes.
LINK = Link(6e6, 1e-3)
SMALLER = 0.93
SHARDS = re.compile(r"( +)mesh = init_device_mesh.*?self\.model = fully_shard\(model, mesh=mesh\)\n", re.DOTALL)


def record(device: torch.device, folder: Path, shape: Shape) -> tuple[dict[str, Any], float]:
    """What ``tune`` records of the program under FSDP1, and the processor's seconds of its forward and backward."""
    training = load_program(folder, "fsdp1").Training(shape, device)
    training.forward_backward()
    training.optimizer.zero_grad()
    with Timeline(training.model) as timeline:
        training.forward_backward()
    seconds = []
    for _ in range(5):
        began = time.process_time()
        training.forward_backward()
        seconds.append(time.process_time() - began)
    return {
        **timeline.as_dict(),
        "layout": present_layout(training.model, timeline.modules),
        "optimizer": optimizer_costs(training.optimizer, device),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
    }, min(seconds)


def chosen(found: Present, computing: float) -> Ranked:
    """The fastest layout that is smaller than the program's by what :data:`SMALLER` says."""
    speed = max(event.flops for event in found.model.events) / computing
    here = Machine("delayed", {"float32": speed}, 2**40, 1 << 20, LINK, LINK, overlaps=False)
    if found.device != "cpu":
        here = machine(found.machine or "h100-sxm")
    now = ranking(found, here, 2**50).now
    best = ranking(found, here, round(SMALLER * now.schedule.memory)).best
    if best is None:
        raise SystemExit(f"no layout needs {SMALLER} of the memory of the program's own")
    return best


def write_tuned(folder: Path, text: str) -> None:
    """The rewritten program, sharded by ``text``."""
    native = (folder / "native/llama.py").read_text(encoding="utf-8")
    match = SHARDS.search(native)
    assert match is not None
    (folder / "tuned").mkdir()
    ours = textwrap.indent(f"{text}\nself.model = model\n", match[1])
    (folder / "tuned/llama.py").write_text(native[: match.start()] + ours + native[match.end() :], encoding="utf-8")


def train(device: torch.device, folder: Path, shape: Shape, rounds: int) -> dict[str, Any]:
    """What one rank measures of all three."""
    programs = {name: load_program(folder, name) for name in NAMES}
    link = LINK if device.type == "cpu" else Link(float("inf"), 0.0)
    trainings: dict[str, Any] = {}
    found: dict[str, dict[str, Any]] = {name: {"losses": [], "wall": [], "own": []} for name in NAMES}
    with Delayed(link) as delayed:
        for name, program in programs.items():
            gc.collect()
            with LiveTensors() as live:
                trainings[name] = program.Training(shape, device)
                for _ in range(3):
                    delayed.clear()
                    live.peak = 0
                    # Not clipped: FSDP1 adds squares up in another order.
                    found[name]["losses"].append(trainings[name].forward_backward().item())
                    counts, moved = dict(delayed.counts), sum(delayed.moved.values())
                    trainings[name].update()
            found[name] |= {"peak": live.peak, "counts": counts, "moved": moved}
        for turn in range(rounds + 1):
            for name in NAMES[turn % 3 :] + NAMES[: turn % 3]:
                dist.barrier()
                delayed.clear()
                began, busy = time.perf_counter(), time.process_time()
                trainings[name].step()
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                if turn:
                    found[name]["wall"].append(time.perf_counter() - began)
                    found[name]["own"].append(time.process_time() - busy + delayed.seconds)
    return found


def peak(device: torch.device, folder: Path, shape: Shape, name: str) -> int:
    """The peak of torch's allocator in the third step of a fresh process."""
    before = peak_bytes(device)
    training = load_program(folder, name).Training(shape, device)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats(device)
        training.step()
    return peak_bytes(device) - before


def compared(ranks: int, kind: str, shape: Shape, rounds: int) -> dict[str, Any]:
    """All three on so many ranks."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_programs(folder, "fp32", kind)
        recorded = on_all_ranks(ranks, kind, record, folder, shape)
        best = chosen(present(recorded[0][0]), min(seconds for _, seconds in recorded))
        text = code(present(recorded[0][0]).model, best.proposal.layout, kind)
        write_tuned(folder, text)
        told = on_all_ranks(ranks, kind, train, folder, shape, rounds)
        if kind == "cuda":
            for each in NAMES:
                for rank, value in zip(told, on_all_ranks(ranks, kind, peak, folder, shape, each), strict=True):
                    rank[each]["peak"] = value
    same = {each: all(rank[each]["losses"] == rank["fsdp1"]["losses"] for rank in told) for each in NAMES}
    if ranks == 2 and not all(same.values()):
        raise SystemExit(f"the programs train differently: {told}")
    clocks = ("wall", "own") if kind == "cpu" else ("wall",)
    slower = {
        (each, clock): [max(turn) for turn in zip(*(rank[each][clock] for rank in told), strict=True)]
        for each in NAMES
        for clock in clocks
    }
    rows: dict[str, Any] = {}
    for each in NAMES:
        counts = told[0][each]["counts"]
        most = max(rank[each]["peak"] for rank in told)
        rows[each] = {
            "collectives": sum(counts.values()),
            "counts": counts,
            "moved": told[0][each]["moved"],
            "same_losses": same[each],
            "peak": most,
            "peak_to_fsdp1": round(most / max(rank["fsdp1"]["peak"] for rank in told), 3),
        }
        for clock in clocks:
            ratios = [ours / theirs for ours, theirs in zip(slower[each, clock], slower["fsdp1", clock], strict=True)]
            rows[each][f"{clock}_seconds"] = round(statistics.median(slower[each, clock]), 4)
            rows[each][f"{clock}_to_fsdp1"] = round(statistics.median(ratios), 3)
    said = best.schedule
    return {
        "ranks": ranks,
        "load_average": [round(load, 1), round(os.getloadavg()[0], 1)],
        "layout": best.name,
        "code": text,
        "said": {
            "collectives": said.collectives,
            "moved": said.gather_bytes + said.scatter_bytes + said.reduction_bytes,
            "peak": said.memory,
            "seconds": round(said.times.step, 4),
        },
        "programs": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help="a multiple of 4, the number of heads")
    parser.add_argument("--length", type=int, default=64, help="tokens in a sequence")
    parser.add_argument("--batch", type=int, default=2, help="sequences per rank")
    parser.add_argument("--vocabulary", type=int, default=512)
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    shape = Shape(options.layers, options.width, options.length, options.batch, options.vocabulary)
    result = {
        **conditions("torch", device=torch.cuda.get_device_name(0) if options.device == "cuda" else ""),
        "backend": "nccl" if options.device == "cuda" else "gloo",
        "link": vars(LINK) if options.device == "cpu" else None,
        "rounds": options.rounds,
        "model": vars(shape),
        "runs": [compared(int(ranks), options.device, shape, options.rounds) for ranks in options.ranks.split(",")],
    }
    write(result, options.output)


if __name__ == "__main__":
    main()
