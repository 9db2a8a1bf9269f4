"""What the forms of FSDP220 cost: an evaluation and a step of training that clears gradients between the two.

    python benchmarks/gathered_forms.py [--rounds 24] [--output benchmarks/gathered_forms.json]

Four copies of one transformer train under FSDP2 on two gloo processes, one thread each, and take turns round by round:

- ``plain`` clears nothing after the evaluation. It is what the others are compared with.
- ``optimizer`` calls the optimizer's ``zero_grad()``, which reaches the sharded parameters.
- ``reshard`` calls ``reshard()`` on each unit, then the model's ``zero_grad()``.
- ``root`` has a root that reshards after each forward, then the model's ``zero_grad()``.

A ratio is the median over rounds of the ratio to ``plain`` in the same round, with its quartiles, of wall and CPU
seconds of the slower rank. All-gathers are counted, which no load changes. Prints JSON.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.conditions import conditions, write
from benchmarks.ranks import on_all_ranks
from benchmarks.turns import to_first

WIDTH, LAYERS, LENGTH, BATCH = 64, 3, 64, 16
FORMS = ("plain", "optimizer", "reshard", "root")


class Gathers(TorchDispatchMode):
    """Counts the all-gathers that run under it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "allgather" in str(func)
        return func(*args, **(kwargs or {}))


class Run:
    """One copy of the model, trained in one form."""

    def __init__(self, form: str) -> None:
        torch.manual_seed(0)
        layers = [nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True) for _ in range(LAYERS)]
        self.form = form
        self.model = nn.Sequential(nn.Embedding(67, WIDTH), *layers, nn.Linear(WIDTH, 67))
        for layer in layers:
            fully_shard(layer)
        # None is the default: a root keeps its parameters after the forward.
        fully_shard(self.model, reshard_after_forward=True if form == "root" else None)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def step(self) -> float:
        """An evaluation, what clears the gradients in this form, and a step of training, which gives the loss."""
        tokens = torch.arange(BATCH * LENGTH).view(BATCH, LENGTH) % 67
        with torch.no_grad():
            self.model(tokens)
        if self.form == "optimizer":
            self.optimizer.zero_grad()
        elif self.form == "reshard":
            for module in self.model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
        if self.form in ("reshard", "root"):
            self.model.zero_grad()
        loss = nn.functional.cross_entropy(self.model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss)


def work(device: torch.device, rounds: int) -> dict[str, Any]:
    """What one rank measures. Fails if the forms train differently."""
    runs = {form: Run(form) for form in FORMS}
    losses = {form: [run.step() for _ in range(2)] for form, run in runs.items()}
    if any(found != losses["plain"] for found in losses.values()):
        raise SystemExit(f"the forms train differently: {losses}")
    gathers = {}
    for form, run in runs.items():
        with Gathers() as counter:
            run.step()
        gathers[form] = counter.count
    seconds: dict[str, list[tuple[float, float]]] = {form: [] for form in FORMS}
    for turn in range(rounds):
        first = turn % len(FORMS)
        for form in FORMS[first:] + FORMS[:first]:
            dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            runs[form].step()
            seconds[form].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {"seconds": seconds, "all_gathers": gathers}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=24, help="how often the forms take turns, at least 4")
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    ranks = on_all_ranks(2, "cpu", work, options.rounds)
    seconds = [rank["seconds"] for rank in ranks]
    result = {
        **conditions("torch"),
        "backend": "gloo",
        "ranks": 2,
        "rounds": options.rounds,
        "load_average": [round(before, 1), round(os.getloadavg()[0], 1)],
        "model": {"width": WIDTH, "layers": LAYERS, "length": LENGTH, "batch": BATCH},
        "to_plain": {"wall": to_first(seconds, 0), "cpu": to_first(seconds, 1)},
        "all_gathers": ranks[0]["all_gathers"],
    }
    write(result, options.output)


if __name__ == "__main__":
    main()
