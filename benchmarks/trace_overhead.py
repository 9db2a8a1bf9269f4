"""What it costs to be looked at: the step of a small transformer under FSDP1 with and without the recorder of trace.

    python benchmarks/trace_overhead.py [--rounds 6] [--output benchmarks/trace_overhead.json]

Trains with AdamW and clipping on two gloo processes, one thread each. Blocks of steps without the recorder and with it
take turns. A ratio is the median over the rounds of the ratio of two neighbouring blocks, so that what else runs on the
machine meets both. Wall and CPU seconds of the slower rank. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from benchmarks.conditions import conditions
from fsdp_migrate.verify.recorder.observing.observer import Observer
from fsdp_migrate.verify.recorder.orders import Orders

WIDTH, LAYERS, LENGTH, BATCH, STEPS = 64, 3, 128, 16, 3


def build() -> tuple[FSDP, torch.optim.Optimizer]:
    """A transformer with the shape of the fixture minigpt, its step scaled up by longer and larger batches."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True) for _ in range(LAYERS)]
    plain = nn.Sequential(nn.Embedding(67, WIDTH), *layers, nn.Linear(WIDTH, 67))
    policy = ModuleWrapPolicy({nn.TransformerEncoderLayer})
    model = FSDP(plain, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True)
    return model, torch.optim.AdamW(model.parameters())


def block(model: FSDP, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """Wall and CPU seconds per step."""
    dist.barrier()
    began, worked = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        tokens = torch.randint(67, (BATCH, LENGTH))
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - began) / STEPS, (time.process_time() - worked) / STEPS


def work(rank: int, rounds: int, directory: str) -> None:
    """One rank: all rounds, and its seconds in a file."""
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
    rows = []
    for number in range(rounds):
        model, optimizer = build()
        block(model, optimizer)
        plain = block(model, optimizer)
        observer = Observer(
            Orders(str(Path(directory, str(number))), 10**9, stop=False, observe=str(Path(__file__).parents[1]))
        )
        observer.listen()
        model, optimizer = build()
        block(model, optimizer)
        seen = block(model, optimizer)
        observer.close()
        rows.append({"plain": plain, "seen": seen})
    Path(directory, f"seconds-{rank}.json").write_text(json.dumps(rows), encoding="utf-8")
    dist.destroy_process_group()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(work, (options.rounds, directory), 2)
        ranks = [json.loads(Path(directory, f"seconds-{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]
    ratios = {}
    for position, clock in enumerate(("wall", "cpu")):
        slower = [
            {kind: max(one[kind][position], other[kind][position]) for kind in one}
            for one, other in zip(*ranks, strict=True)
        ]
        found = sorted(row["seen"] / row["plain"] for row in slower)
        ratios[clock] = {
            "seconds per step": round(statistics.median(row["plain"] for row in slower), 4),
            "ratio": round(statistics.median(found), 3),
            "from": round(found[0], 3),
            "to": round(found[-1], 3),
        }
    text = json.dumps({**conditions(), "rounds": options.rounds, **ratios}, indent=2) + "\n"
    sys.stdout.write(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
