"""What the recorder costs: the step of a small transformer with and without it, in the same processes.

    python benchmarks/verify_overhead.py [--rounds 6] [--output benchmarks/verify_overhead.json]

Trains with AdamW and clipping on two gloo processes, one thread each, with batches large enough for a step of 200 ms or
more. Blocks of steps without the recorder, with it, and after the last step that it records take turns. A ratio is the
median over the rounds of the ratio of two neighbouring blocks, so that what else runs on the machine meets both. Wall
and CPU seconds of the slower rank. Prints JSON.
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
from torch.distributed.fsdp import fully_shard

from benchmarks.conditions import conditions
from fsdp_migrate.verify.recorder.orders import Orders
from fsdp_migrate.verify.recorder.session import Session

WIDTH, LAYERS, LENGTH, BATCH, STEPS = 64, 3, 128, 48, 3


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A transformer with the shape of the fixture minigpt, its step scaled up by longer and larger batches."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True) for _ in range(LAYERS)]
    model = nn.Sequential(nn.Embedding(67, WIDTH), *layers, nn.Linear(WIDTH, 67))
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters())


def block(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """Wall and CPU seconds per step."""
    dist.barrier()
    began, worked = time.perf_counter(), time.process_time()
    for _ in range(STEPS):
        tokens = torch.randint(67, (BATCH, LENGTH))
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return (time.perf_counter() - began) / STEPS, (time.process_time() - worked) / STEPS


def small_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One that is not timed."""
    tokens = torch.randint(67, (1, 8))
    nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()


def work(rank: int, rounds: int, directory: str) -> None:
    """One rank: all rounds, and its seconds in a file."""
    os.environ.update(MASTER_ADDR="127.0.0.1", RANK=str(rank), WORLD_SIZE="2")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
    model, optimizer = build()
    block(model, optimizer)
    rows = []
    for number in range(rounds):
        plain = block(model, optimizer)
        # Two steps more than are timed: what is written once, at the first and after the last, is no cost of a step.
        session = Session(Orders(str(Path(directory, str(number))), STEPS + 2, stop=False))
        session.listen()
        small_step(model, optimizer)
        recorded = block(model, optimizer)
        small_step(model, optimizer)
        rows.append((*plain, *recorded, *block(model, optimizer)))
        session.close()
    Path(directory, f"seconds-{rank}.json").write_text(json.dumps(rows))
    dist.barrier()
    dist.destroy_process_group()


def ratio(rows: list[tuple[float, ...]], above: int, below: int) -> dict[str, float]:
    """Of two columns: the median over the rounds, the quartiles, and the ratio of the least of each column."""
    quartiles = statistics.quantiles([row[above] / row[below] for row in rows], n=4)
    least = min(row[above] for row in rows) / min(row[below] for row in rows)
    return dict(zip(("lower quartile", "median", "upper quartile", "of the least"), (*quartiles, least), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(work, (arguments.rounds, directory), nprocs=2)
        ranks = [json.loads(Path(directory, f"seconds-{rank}.json").read_text()) for rank in range(2)]
    slower = [tuple(max(times) for times in zip(*pair, strict=True)) for pair in zip(*ranks, strict=True)]
    middle = [statistics.median(column) for column in zip(*slower, strict=True)]
    answer = {
        **conditions("torch"),
        "rounds": arguments.rounds,
        "seconds per step": {"wall": middle[0], "cpu": middle[1]},
        "seconds per recorded step": {"wall": middle[2], "cpu": middle[3]},
        "seconds per step after the recorded ones": {"wall": middle[4], "cpu": middle[5]},
        "recorded to plain": {"wall": ratio(slower, 2, 0), "cpu": ratio(slower, 3, 1)},
        "after to plain": {"wall": ratio(slower, 4, 0), "cpu": ratio(slower, 5, 1)},
    }
    text = json.dumps(answer, indent=2) + "\n"
    print(text, end="")
    if arguments.output is not None:
        arguments.output.write_text(text)


if __name__ == "__main__":
    main()
