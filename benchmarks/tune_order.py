"""Whether ``fsdp-migrate tune`` puts layouts in the order of their measured times.

    python benchmarks/tune_order.py [--steps 5] [--output benchmarks/tune_order.json]

Three models are trained on two and on four gloo processes under each layout that ``tune`` proposes, by the code that it
prints. A collective takes as long as a known link says, longer than gloo takes: a wrapper sleeps for the rest, after
each. Two links: one of high latency, one of low bandwidth. What is predicted is a step on a machine of that link, whose
speed of computing is that of one step without communication. Pairs of layouts are compared in which one is predicted
to be faster by 2 % or more; of each it is counted whether it was, by the fastest of several steps, which take turns:
what else runs on the machine only adds to them. ``wall`` are seconds of the clock, which a loaded machine spoils;
``own`` are the processor's seconds of a rank with those that its collectives were made to take. Prints JSON.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.conditions import conditions
from benchmarks.delayed import Delayed
from benchmarks.llama import Llama, Shape
from benchmarks.ranks import on_all_ranks
from fsdp_compat.preflight.timeline import Timeline
from fsdp_migrate.tune.layout_code import code
from fsdp_migrate.tune.machine import Link, Machine
from fsdp_migrate.tune.proposals import proposals
from fsdp_migrate.tune.schedule import schedule
from fsdp_migrate.tune.sharding_layout import Layout, Unit
from fsdp_migrate.tune.traced_model import traced

LINKS = {"latency": Link(1e9, 2e-2), "bandwidth": Link(6e6, 3e-4)}
CLOCKS = ("wall", "own")


def llama(vocabulary: int) -> Callable[[], nn.Module]:
    return lambda: Llama(Shape(5, 64, 16, 2, vocabulary))


def uneven() -> nn.Module:
    """Layers of several widths."""
    widths = (64, 190, 61, 333, 64, 64)
    layers: list[nn.Module] = [nn.Embedding(512, 64)]
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(64, 512))


MODELS: dict[str, Callable[[], nn.Module]] = {"llama": llama(512), "large ends": llama(4096), "uneven": uneven}


def tokens() -> torch.Tensor:
    return torch.randint(512, (2, 16), generator=torch.Generator().manual_seed(dist.get_rank()))


def passes(model: nn.Module, batch: torch.Tensor) -> None:
    """One forward and backward."""
    model(batch).square().mean().backward()


def record(device: torch.device, name: str) -> tuple[dict[str, Any], float]:
    """One step of the plain model, and the seconds of one."""
    model, batch = MODELS[name](), tokens()
    with Timeline(model) as timeline:
        passes(model, batch)
    seconds = []
    for _ in range(9):
        began = time.process_time()
        passes(model, batch)
        seconds.append(time.process_time() - began)
    return timeline.as_dict(), min(seconds)


def measure(
    device: torch.device, name: str, codes: dict[str, str], link: Link, steps: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of the steps under each layout, which take turns: of the clock, and own ones."""
    models: dict[str, Any] = {}
    for layout, text in codes.items():
        namespace = {"model": MODELS[name]()}
        exec(text, namespace)
        models[layout] = namespace["model"]
    batch = tokens()
    found: dict[str, list[tuple[float, float]]] = {layout: [] for layout in codes}
    with Delayed(link) as delayed:
        for step in range(steps + 2):
            for layout, model in models.items():
                dist.barrier()
                delayed.seconds = 0.0
                began, busy = time.perf_counter(), time.process_time()
                passes(model, batch)
                wall, own = time.perf_counter() - began, time.process_time() - busy + delayed.seconds
                model.zero_grad()
                if step >= 2:
                    found[layout].append((wall, own))
    return found


def compared(name: str, ranks: int, kind: str, steps: int) -> dict[str, Any]:
    """Predicted and measured seconds of every layout of one model, and the pairs whose order is right."""
    values, computing = on_all_ranks(1, "cpu", record, name)[0]
    model, link = traced(values), LINKS[kind]
    speed = max(event.flops for event in model.events) / computing
    here = Machine("delayed", {"float32": speed}, 2**40, 1 << 20, link, link, overlaps=False)
    offered = proposals(model, Layout("now", (Unit((0,)),), ranks), max(2, ranks // 2))
    said = {each.layout.name: schedule(model, each.layout, here).times.step for each in offered}
    codes = {each.layout.name: code(model, each.layout, "cpu") for each in offered}
    runs = on_all_ranks(ranks, "cpu", measure, name, codes, link, steps)
    pairs = [
        (one, two)
        for one, two in itertools.combinations(codes, 2)
        if abs(said[one] - said[two]) >= 0.02 * max(said[one], said[two])
    ]
    row: dict[str, Any] = {"model": name, "ranks": ranks, "link": kind, "pairs": len(pairs)}
    row["predicted"] = {layout: round(seconds, 5) for layout, seconds in said.items()}
    for place, clock in enumerate(CLOCKS):
        turns = {layout: zip(*(run[layout] for run in runs), strict=True) for layout in codes}
        found = {layout: min(max(each[place] for each in turn) for turn in of) for layout, of in turns.items()}
        wrong = [(one, two) for one, two in pairs if (said[one] < said[two]) != (found[one] < found[two])]
        seconds = {layout: round(value, 5) for layout, value in found.items()}
        row[clock] = {"right": len(pairs) - len(wrong), "wrong": wrong, "seconds": seconds}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, ranks, kind in itertools.product(MODELS, (2, 4), LINKS):
        rows.append(compared(name, ranks, kind, options.steps))
        right = [rows[-1][clock]["right"] for clock in CLOCKS]
        print(name, ranks, kind, *right, "of", rows[-1]["pairs"], file=sys.stderr, flush=True)
        result = {
            **conditions("torch"),
            "load_average": round(os.getloadavg()[0], 1),
            "steps": options.steps,
            "links": {name: vars(link) for name, link in LINKS.items()},
            "pairs": sum(row["pairs"] for row in rows),
            "right": {clock: sum(row[clock]["right"] for row in rows) for clock in CLOCKS},
            "runs": rows,
        }
        # After each, so that one that is ended leaves what it has.
        if options.output:
            options.output.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
