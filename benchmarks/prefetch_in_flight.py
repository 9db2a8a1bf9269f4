"""How many all-gathers are in flight while a unit computes, with and without ``forward_prefetch=True``.

    python benchmarks/prefetch_in_flight.py [--layers 6] [--output benchmarks/prefetch_in_flight.json]

Rewrites benchmarks/llama.py to native FSDP2 and to the shim, and runs one forward of the three in the same processes:
two CPU ranks with gloo, or every CUDA device with NCCL (``--device cuda``). The all-gathers that were issued are
counted as each block begins to compute. Those beyond the ones that it, and what ran before it, needed are in flight:
gathered early for a later unit. The orders are those of a second step, for which FSDP1 has recorded in which units
run. A ratio is that of the all-gathers in flight over all blocks to FSDP1's in the same run, null where FSDP1 has
none. Neither the machine nor its load changes these numbers. Fails if the three find other losses. Prints JSON.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks.conditions import conditions, write
from benchmarks.gathered_forms import Gathers
from benchmarks.llama import Shape
from benchmarks.ranks import on_all_ranks
from benchmarks.training_costs import IMPLEMENTATIONS, load_program, write_programs

#: The variants of the program, by what they are called here.
VARIANTS = {"without": "bf16", "with": "bf16-prefetch"}


def in_flight(training: Any) -> tuple[list[int], float]:
    """The all-gathers in flight as each block of a second step begins to compute, and the loss of that step."""
    training.step()
    found: list[int] = []
    needed = 1  # The root's own.
    with Gathers() as counter:

        def begins(module: torch.nn.Module, given: object) -> None:
            if torch.is_grad_enabled() and len(found) < blocks:
                found.append(counter.count - needed - len(found) - 1)

        # The norm is the first that a block computes: hooks of the block itself run before its unit is gathered.
        norms = [module for name, module in training.model.named_modules() if name.endswith("attention_norm")]
        blocks = len(norms)
        hooks = [norm.register_forward_pre_hook(begins) for norm in norms]
        loss = training.forward_backward().item()
        for hook in hooks:
            hook.remove()
    return found, loss


def work(device: torch.device, folders: dict[str, Path], shape: Shape) -> dict[str, dict[str, list[int]]]:
    """What one rank counts. Fails if the implementations train differently."""
    counted: dict[str, dict[str, list[int]]] = {}
    for variant, folder in folders.items():
        runs = {name: in_flight(load_program(folder, name).Training(shape, device)) for name in IMPLEMENTATIONS}
        losses = {name: loss for name, (_, loss) in runs.items()}
        if max(losses.values()) - min(losses.values()) > 1e-3 * max(losses.values()):
            raise SystemExit(f"the implementations train differently: {losses}")
        counted[variant] = {name: found for name, (found, _) in runs.items()}
    return counted


def measured(shape: Shape, device: str, ranks: int) -> dict[str, Any]:
    """The all-gathers in flight of each variant and implementation, and their ratios to FSDP1's."""
    with tempfile.TemporaryDirectory() as directory:
        folders = {}
        for name, variant in VARIANTS.items():
            folders[name] = Path(directory, name)
            folders[name].mkdir()
            write_programs(folders[name], variant, device)
        counted = on_all_ranks(ranks, device, work, folders, shape)[0]
    result = {}
    for variant, found in counted.items():
        theirs = sum(found["fsdp1"])
        ratios = {name: round(sum(found[name]) / theirs, 3) if theirs else None for name in IMPLEMENTATIONS[1:]}
        result[variant] = {"in_flight": found, "ratio": ratios}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=6, help="how many blocks the model has")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    ranks = torch.cuda.device_count() if options.device == "cuda" else 2
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else ""
    shape = Shape(options.layers, 64, 16, 2)
    result = {
        **conditions("torch", device=gpu),
        "ranks": ranks,
        "layers": options.layers,
        "forward_prefetch": measured(shape, options.device, ranks),
    }
    write(result, options.output)


if __name__ == "__main__":
    main()
