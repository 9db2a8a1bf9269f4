"""What the ways to load a full state cost: time in turns with FSDP1, and the peak of memory of rank 0 and the others.

    python benchmarks/loading_forms.py [--rounds 8] [--output benchmarks/loading_forms.json]

A Llama-like model (benchmarks/llama.py) and its AdamW are saved by rank 0 in one file and loaded on two gloo processes:

- ``fsdp1``: FSDP1 under FULL_STATE_DICT. It is what the others are compared with.
- ``written``: what ``rewrite`` makes of that, but for its copies of states: every rank reads the file, and rank 0 sends
  the tensors of the model and of the optimizer. ``broadcast on rank 0``: the same with the file read there alone.
- ``scattered optimizer``: rank 0 sends the model's tensors, and those of the optimizer are scattered.
- ``scatter``: torch scatters all tensors, which ``full_state_dict=True`` alone does.
- ``cut``: each rank cuts its shards out of its own file (``distribute_tensor(..., src_data_rank=None)``, torch 2.7).
- ``cut, assigned``: the same, and the shards replace the parameters (``load_state_dict(..., assign=True)``).
- ``... on meta``: the same into a model that was built and sharded on the meta device.
- ``..., read whole``: the file is read into memory first (``torch.load`` without ``mmap=True``).

Times: the forms take turns in the same processes; a ratio is the median over rounds of the ratio to ``fsdp1`` in the
same round, with its quartiles, of the processor's seconds of the slower rank. Memory: a fresh process for each form
builds the model and loads once, and the anonymous memory (without pages of the file) is sampled meanwhile. Fails if a
form loads other values than are in the file. Prints JSON.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor, distribute_tensor

from benchmarks.conditions import conditions, write
from benchmarks.llama import Block, Llama, Shape
from benchmarks.ranks import KIB, on_all_ranks
from benchmarks.turns import to_first

FORMS = ("fsdp1", "written", "scattered optimizer", "scatter", "cut")
IN_MEMORY = (*FORMS, "broadcast on rank 0", "cut, assigned", "broadcast on meta", "cut, assigned on meta")
READ_WHOLE = ", read whole"


class Run:
    """One model with its optimizer, loaded in one form."""

    def __init__(self, form: str, shape: Shape) -> None:
        self.form = form.removesuffix(READ_WHOLE)
        self.is_mapped = self.form == form
        torch.manual_seed(dist.get_rank())
        with torch.device("meta" if self.form.endswith("on meta") else "cpu"):
            self.model: Any = Llama(shape)
        if self.form == "fsdp1":
            policy = ModuleWrapPolicy({Block})
            self.model = FSDP(self.model, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True)
        else:
            for block in self.model.blocks:
                fully_shard(block)
            fully_shard(self.model)
        # New parameters take the place of those on meta, and of those that a state is assigned to.
        self.is_replaced = self.form.endswith("on meta") or "assigned" in self.form
        self._build_optimizer()

    def _build_optimizer(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def load(self, file: Path) -> None:
        """Load the model and its optimizer."""
        is_absent = self.form == "broadcast on rank 0" and dist.get_rank() > 0
        state = {"model": {}, "optimizer": {}} if is_absent else self._read(file)
        if self.form == "fsdp1":
            with FSDP.state_dict_type(self.model, StateDictType.FULL_STATE_DICT):
                self.model.load_state_dict(state["model"])
                sharded = FSDP.optim_state_dict_to_load(self.model, self.optimizer, state["optimizer"])
            self.optimizer.load_state_dict(sharded)
        elif self.form.startswith("cut"):
            self._load_cut(state)
        else:
            whole = StateDictOptions(full_state_dict=True)
            sent = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
            scattering = {"scattered optimizer": (sent, whole), "scatter": (whole, whole)}
            options = scattering.get(self.form, (sent, sent))
            set_model_state_dict(self.model, state["model"], options=options[0])
            self._load_optimizer(state["optimizer"], options[1])

    def _load_optimizer(self, state: dict[str, Any], options: StateDictOptions | None = None) -> None:
        if self.is_replaced:
            self._build_optimizer()
        set_optimizer_state_dict(self.model, self.optimizer, optim_state_dict=state, options=options)

    def _read(self, file: Path) -> Any:
        return torch.load(file, map_location="cpu", mmap=self.is_mapped)

    def _load_cut(self, state: Mapping[str, Any]) -> None:
        own = self.model.state_dict()
        model = {name: _cut(value, own[name]) for name, value in state["model"].items()}
        self.model.load_state_dict(model, assign="assigned" in self.form)
        states = {
            name: {key: _cut(value, own[name]) if value.dim() else value for key, value in held.items()}
            for name, held in state["optimizer"]["state"].items()
        }
        self._load_optimizer({"state": states, "param_groups": state["optimizer"]["param_groups"]})

    def check(self, file: Path) -> None:
        """Fail where another value was loaded."""
        state = self._read(file)
        for name, param in self.model.named_parameters() if self.form != "fsdp1" else ():
            held = {"": param, **self.optimizer.state[param]}
            saved = {"": state["model"][name], **state["optimizer"]["state"][name]}
            for key, value in saved.items():
                found = held[key].full_tensor() if isinstance(held[key], DTensor) else held[key]
                if not torch.equal(found, value):
                    raise SystemExit(f"{self.form}: {name} {key} is not what was saved")


def _cut(value: torch.Tensor, like: Any) -> torch.Tensor:
    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)


def _shape(width: int) -> Shape:
    return Shape(layers=4, width=width, length=64, batch=4)


def save(file: Path, shape: Shape) -> None:
    """A state of the model and of AdamW, whose counters are tensors of their own."""
    torch.manual_seed(0)
    model = Llama(shape)
    states = {
        name: {"step": torch.tensor(3.0), "exp_avg": torch.randn_like(one), "exp_avg_sq": torch.rand_like(one)}
        for name, one in model.named_parameters()
    }
    (group,) = torch.optim.AdamW(model.parameters(), lr=1e-3).state_dict()["param_groups"]
    optimizer = {"state": states, "param_groups": [{**group, "params": [*states]}]}
    torch.save({"model": model.state_dict(), "optimizer": optimizer}, file)


def times(device: torch.device, file: Path, shape: Shape, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Wall and CPU seconds of each load of this rank, by forms."""
    runs = {form: Run(form, shape) for form in FORMS}
    for run in runs.values():
        # The first one plans what the others reuse.
        run.load(file)
        run.check(file)
    seconds: dict[str, list[tuple[float, float]]] = {form: [] for form in FORMS}
    for turn in range(rounds):
        first = turn % len(FORMS)
        for form in FORMS[first:] + FORMS[:first]:
            dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            runs[form].load(file)
            seconds[form].append((time.perf_counter() - wall, time.process_time() - cpu))
    return seconds


def memory(device: torch.device, file: Path, shape: Shape, form: str) -> float:
    """MiB of anonymous memory at the peak of building and loading in this process, which must be a fresh one."""
    before = _anonymous()
    peak = _sampled(lambda: _built_and_loaded(file, shape, form))
    return (peak - before) / KIB**2


def _built_and_loaded(file: Path, shape: Shape, form: str) -> None:
    run = Run(form, shape)
    dist.barrier()
    run.load(file)


def _anonymous() -> int:
    (line,) = (one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("RssAnon"))
    return int(line.split()[1]) * KIB


def _sampled(work: Callable[[], object]) -> int:
    peak, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(0.0005):
            peak = max(peak, _anonymous())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        work()
    finally:
        ended.set()
        watching.join()
    return max(peak, _anonymous())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="how often the forms take turns, at least 4")
    parser.add_argument("--widths", type=int, nargs="+", default=[256], help="of the models that are timed")
    parser.add_argument("--memory-width", type=int, default=512, help="of the model whose memory is measured")
    every = [*IN_MEMORY, *(f"{form}{READ_WHOLE}" for form in ("fsdp1", "written"))]
    parser.add_argument("--memory-forms", nargs="*", default=every, metavar="FORM", help="whose memory is measured")
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    loads = [os.getloadavg()[0]]
    found: dict[str, Any] = {"to_fsdp1": {}, "peak_mib": {}}
    with tempfile.TemporaryDirectory() as folder:
        for width in (*options.widths, options.memory_width):
            save(Path(folder, f"{width}.pt"), _shape(width))
        for width in options.widths:
            told = on_all_ranks(2, "cpu", times, Path(folder, f"{width}.pt"), _shape(width), options.rounds)
            found["to_fsdp1"][str(width)] = {"wall": to_first(told, 0), "cpu": to_first(told, 1)}
        # Read by the C library when a process starts: tensors from 64 KiB on get pages which are given back.
        os.environ["MALLOC_MMAP_THRESHOLD_"] = str(64 * KIB)
        shape, file = _shape(options.memory_width), Path(folder, f"{options.memory_width}.pt")
        for form in options.memory_forms:
            peaks = on_all_ranks(2, "cpu", memory, file, shape, form)
            found["peak_mib"][form] = [round(peak, 1) for peak in peaks]
    result = {
        **conditions("torch"),
        "backend": "gloo",
        "ranks": 2,
        "rounds": options.rounds,
        "load_average": [round(loads[0], 1), round(os.getloadavg()[0], 1)],
        "parameters": {
            str(width): sum(param.numel() for param in Llama(_shape(width)).parameters())
            for width in (*options.widths, options.memory_width)
        },
        "memory_width": options.memory_width,
        **found,
    }
    write(result, options.output)


if __name__ == "__main__":
    main()
