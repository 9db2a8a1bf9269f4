"""What ``fsdp-migrate tune`` says of memory and time on one device, beside what is measured there.

    python benchmarks/tune_memory.py --device cuda [--machine h100-sxm] [--output benchmarks/tune_memory.json]

One Llama-like model (benchmarks/llama.py) is trained in bf16 with AdamW under each layout, one after the other on one
device: nothing is sharded, but units are copied, resharded and reduced as on many. The first step of one of them is
recorded. Of each layout are printed the peak of torch's allocator in forward and backward and in the update,
less what was allocated before the model, and the median seconds of a step; with what the schedule says of them. Of all
pairs of layouts, in how many the order is as predicted. On the CPU, where there is no such allocator, time alone.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from benchmarks.conditions import conditions, write
from benchmarks.llama import Llama, Shape
from benchmarks.ranks import on_all_ranks
from fsdp_compat.preflight.present_layout import optimizer_costs, present_layout
from fsdp_compat.preflight.timeline import Timeline
from fsdp_migrate.tune.machine import Machine, machine
from fsdp_migrate.tune.present import present
from fsdp_migrate.tune.proposals import parts
from fsdp_migrate.tune.schedule import schedule
from fsdp_migrate.tune.sharding_layout import Layout, Unit
from fsdp_migrate.tune.traced_model import TracedModel

STEPS, WARM = 8, 3


def layouts(model: TracedModel) -> list[Layout]:
    """Eight layouts on one rank."""
    found, root = parts(model), Unit((0,))
    blocks = tuple(Unit((block,)) for block in found.blocks)
    pairs = tuple(Unit(found.blocks[i : i + 2]) for i in range(0, len(blocks), 2))
    whole = tuple(replace(unit, reshard=False) for unit in blocks)
    ends = (*(Unit((place,)) for place in found.before), Unit(found.after, False))
    plain = Layout("blocks", (*blocks, root), 1, param_dtype="bfloat16", reduce_dtype="float32")
    return [
        plain,
        replace(plain, name="one unit", units=(root,)),
        replace(plain, name="whole after forward", units=(*whole, root)),
        replace(plain, name="last block whole", units=(*blocks[:-1], whole[-1], root)),
        replace(plain, name="ends apart", units=(*blocks, *ends, root)),
        replace(plain, name="pairs", units=(*pairs, root)),
        replace(plain, name="two ahead", forward_prefetch=2, backward_prefetch=2),
        replace(plain, name="accumulated", microbatches=2),
    ]


class Run:
    """The model under one layout."""

    def __init__(self, device: torch.device, shape: Shape, units: list[tuple[list[str], Any]], ahead: int) -> None:
        torch.manual_seed(0)
        with device:
            self.model: Any = Llama(shape)
        mesh = init_device_mesh(device.type, (1,))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        modules = dict(self.model.named_modules())
        for names, reshard in units:
            own: Any = [modules[name] for name in names]
            fully_shard(own if len(own) > 1 else own[0], mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        chain = [modules[names[0]] for names, _ in units[:-1]]
        for place, unit in enumerate(chain if ahead else []):
            unit.set_modules_to_forward_prefetch(chain[place + 1 : place + 1 + ahead])
            unit.set_modules_to_backward_prefetch(chain[max(0, place - ahead) : place][::-1])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.tokens = torch.randint(shape.vocabulary, (shape.batch, shape.length), device=device)

    def forward_backward(self) -> None:
        """One pass; activations in bf16, the loss in fp32."""
        loss = nn.functional.cross_entropy(self.model(self.tokens).flatten(0, 1).float(), self.tokens.flatten())
        loss.backward()

    def update(self) -> None:
        """One step of the optimizer."""
        self.optimizer.step()
        self.optimizer.zero_grad()


def record(device: torch.device, shape: Shape) -> dict[str, Any]:
    """The first step of the model in one unit."""
    run = Run(device, shape, [([""], None)], 0)
    with Timeline(run.model) as timeline:
        run.forward_backward()
    return {
        **timeline.as_dict(),
        "layout": present_layout(run.model, timeline.modules),
        "optimizer": optimizer_costs(run.optimizer, device),
        "device": device.type,
    }


def measure(device: torch.device, run: Run, layout: Layout, before: int) -> dict[str, Any]:
    """Peaks in bytes of both halves of a step, and the median seconds of its passes and of all."""
    is_cuda = device.type == "cuda"
    peaks, passes, seconds = [0, 0], [], []
    for step in range(WARM + STEPS):
        began = _now(device)
        for half, work in enumerate((lambda: _passes(run, layout), run.update)):
            if is_cuda:
                torch.cuda.reset_peak_memory_stats(device)
            work()
            if is_cuda and step >= WARM:
                peaks[half] = max(peaks[half], torch.cuda.max_memory_allocated(device) - before)
            if half == 0 and step >= WARM:
                passes.append(_now(device) - began)
        if step >= WARM:
            seconds.append(_now(device) - began)
    medians = {"seconds": statistics.median(passes), "seconds_with_update": statistics.median(seconds)}
    return {"peak": peaks[0], "peak_update": peaks[1], **medians}


def every_layout(device: torch.device, shape: Shape, here: Machine) -> tuple[list[dict[str, Any]], int]:
    """A row for each layout, and the elements of the model."""
    model = present(record(device, shape)).model
    rows: list[dict[str, Any]] = []
    for layout in layouts(model):
        # Units and their hooks refer to each other.
        gc.collect()
        before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
        units = [([model.modules[m].name for m in unit.modules], unit.reshard) for unit in layout.units]
        found = measure(device, Run(device, shape, units, layout.forward_prefetch), layout, before)
        said = schedule(model, layout, here)
        told = {"said_peak": said.peak, "said_peak_update": said.update, "said_seconds": said.times.step}
        rows.append({"layout": layout.name, **found, **told, "at_peak": dict(said.at_peak)})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows, sum(parameter.numel for parameter in model.parameters)


def _passes(run: Run, layout: Layout) -> None:
    for turn in range(layout.microbatches):
        run.model.set_requires_gradient_sync(turn == layout.microbatches - 1)
        run.forward_backward()


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def agreement(rows: list[dict[str, Any]], key: str) -> dict[str, Any]:
    """Pairs of layouts whose order by ``key`` is as predicted; those that differ by less than 1 % are left out."""
    pairs = [(a, b) for a, b in combinations(rows, 2) if abs(a[key] - b[key]) > 0.01 * max(a[key], b[key])]
    right = sum((a[key] < b[key]) == (a[f"said_{key}"] < b[f"said_{key}"]) for a, b in pairs)
    return {"pairs": len(pairs), "right": right}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--machine", default="h100-sxm")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    shape = Shape(options.layers, options.width, options.length, options.batch, options.vocabulary)
    rows, parameters = on_all_ranks(1, options.device, every_layout, shape, machine(options.machine))[0]
    result = {
        **conditions("torch", device=torch.cuda.get_device_name(0) if options.device == "cuda" else ""),
        "model": vars(shape),
        "parameters": parameters,
        "layouts": rows,
        "order_of_peaks": agreement(rows, "peak") if options.device == "cuda" else None,
        "order_of_seconds": agreement(rows, "seconds"),
    }
    write(result, options.output)


if __name__ == "__main__":
    main()
