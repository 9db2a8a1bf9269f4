"""What the ways to gather a full state on rank 0 cost, in turns with FSDP1.

    python benchmarks/saving_forms.py [--rounds 8] [--output benchmarks/saving_forms.json]

A Llama-like model (benchmarks/llama.py) and its AdamW are gathered on two gloo processes, and rank 0 keeps the result.
No file is written: that costs the same in each form.

- ``fsdp1``: FSDP1 under FULL_STATE_DICT with ``rank0_only``. What the others are compared with.
- ``written``: what ``rewrite`` makes of that: ``get_model_state_dict`` and ``get_optimizer_state_dict`` with
  ``full_state_dict=True, cpu_offload=True``.
- ``full_tensor``: ``DTensor.full_tensor()`` of each tensor on all ranks, which ranks above 0 drop.
- ``gathered``: each rank sends its part of each tensor to rank 0 alone (``torch.distributed.gather``).
- ``in one``: as ``gathered``, with the parts of all tensors of a rank in one, so that there is one collective.
- ``states``: ``written`` without ``full_state_dict``: what names and states cost without gathering.

Times: the forms take turns in the same processes; a ratio is the median over rounds of the ratio to ``fsdp1`` in the
same round, with its quartiles, of the seconds of the slower rank. Fails if a form gathers other values.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import DTensor

from benchmarks.conditions import conditions, write
from benchmarks.llama import Block, Llama, Shape
from benchmarks.ranks import on_all_ranks
from benchmarks.turns import to_first

Named = dict[Any, Any]


def _fsdp1(model: Any, optimizer: Any) -> Named:
    # On a CPU, offload_to_cpu gives FSDP1's states one memory, or ends the process.
    configs = FullStateDictConfig(rank0_only=True), FullOptimStateDictConfig(rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, *configs):
        return {"model": model.state_dict(), "optimizer": FSDP.optim_state_dict(model, optimizer)}


def _written(model: Any, optimizer: Any) -> Named:
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return {
        "model": get_model_state_dict(model, options=options),
        "optimizer": get_optimizer_state_dict(model, optimizer, options=options),
    }


def _states(model: Any, optimizer: Any) -> Named:
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


def _tensors(model: Any, optimizer: Any) -> Named:
    names = {param: name for name, param in model.named_parameters()}
    states = {(names[param], key): held for param, state in optimizer.state.items() for key, held in state.items()}
    return {**{(name, ""): param.detach() for param, name in names.items()}, **states}


def _full_tensor(model: Any, optimizer: Any) -> Named:
    found = {
        key: held.full_tensor().cpu() if isinstance(held, DTensor) else held
        for key, held in _tensors(model, optimizer).items()
    }
    return found if dist.get_rank() == 0 else {}


def _gathered(model: Any, optimizer: Any) -> Named:
    return {
        key: _whole(held, _sent(_padded(held))) if isinstance(held, DTensor) else held
        for key, held in _tensors(model, optimizer).items()
    }


def _in_one(model: Any, optimizer: Any) -> Named:
    found = _tensors(model, optimizer)
    sharded = {key: held for key, held in found.items() if isinstance(held, DTensor)}
    padded = [_padded(held) for held in sharded.values()]
    ranks = [torch.split_with_sizes(rank, [part.numel() for part in padded]) for rank in _sent(torch.cat(padded))]
    return {**found, **{key: _whole(held, parts) for (key, held), *parts in zip(sharded.items(), *ranks, strict=True)}}


def _padded(held: DTensor) -> torch.Tensor:
    """The part of this rank, as long as that of the first one."""
    local = held.to_local().detach().flatten()
    rows = -(-held.shape[0] // dist.get_world_size())
    length = rows * held[0].numel() if held.dim() > 1 else rows
    return torch.nn.functional.pad(local, (0, length - local.numel()))


def _sent(part: torch.Tensor) -> list[torch.Tensor]:
    """The parts of all ranks on rank 0, none elsewhere."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size())] if dist.get_rank() == 0 else None
    dist.gather(part, parts, dst=0)
    return parts or []


def _whole(held: DTensor, parts: Any) -> torch.Tensor | None:
    return torch.cat([*parts])[: held.numel()].view(held.shape) if len(parts) else None


FORMS: dict[str, Callable[[Any, Any], Named]] = {
    "fsdp1": _fsdp1,
    "written": _written,
    "full_tensor": _full_tensor,
    "gathered": _gathered,
    "in one": _in_one,
    "states": _states,
}


def _built(form: str, shape: Shape) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model: Any = Llama(shape)
    if form == "fsdp1":
        policy = ModuleWrapPolicy({Block})
        model = FSDP(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True)
    else:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def times(device: torch.device, shape: Shape, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Wall and CPU seconds of each form on this rank."""
    fsdp1, fsdp2 = _built("fsdp1", shape), _built("", shape)
    given = {form: fsdp1 if form == "fsdp1" else fsdp2 for form in FORMS}
    _check({form: gather(*given[form]) for form, gather in FORMS.items()})
    seconds: dict[str, list[tuple[float, float]]] = {form: [] for form in FORMS}
    names = [*FORMS]
    for turn in range(rounds):
        first = turn % len(names)
        for form in names[first:] + names[:first]:
            dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            FORMS[form](*given[form])
            seconds[form].append((time.perf_counter() - wall, time.process_time() - cpu))
    return seconds


def _check(found: dict[str, Named]) -> None:
    if dist.get_rank() > 0:
        return
    wanted = found["written"]
    flat = {(name, ""): held for name, held in wanted["model"].items()}
    flat |= {(name, key): held for name, state in wanted["optimizer"]["state"].items() for key, held in state.items()}
    for form in ("full_tensor", "gathered", "in one"):
        for key, held in found[form].items():
            if not torch.equal(held, flat[key]):
                raise SystemExit(f"{form}: {key} is not what get_model_state_dict gives")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="how often the forms take turns, at least 4")
    parser.add_argument("--width", type=int, default=256, help="of the model")
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    shape = Shape(layers=4, width=options.width, length=64, batch=4)
    told = on_all_ranks(2, "cpu", times, shape, options.rounds)
    result = {
        **conditions("torch"),
        "backend": "gloo",
        "ranks": 2,
        "rounds": options.rounds,
        "load_average": [round(load, 1), round(os.getloadavg()[0], 1)],
        "parameters": sum(param.numel() for param in Llama(shape).parameters()),
        "tensors": 3 * len([*Llama(shape).parameters()]),
        "to_fsdp1": {"wall": to_first(told, 0), "cpu": to_first(told, 1)},
    }
    write(result, options.output)


if __name__ == "__main__":
    main()
