"""The ``fully_shard`` calls that make a layout."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fsdp_migrate.tune.sharding_layout import Layout, Unit
from fsdp_migrate.tune.traced_model import TracedModel


def code(model: TracedModel, layout: Layout, device: str) -> str:
    """Statements for a plain ``model``, in place of what shards it now; ``device`` is the type of a mesh's devices."""
    return "\n".join(
        (*_imports(layout), "", *_arguments(layout, device), *_units(model, layout), *_ahead(model, layout))
    )


def _imports(layout: Layout) -> Iterator[str]:
    if layout.param_dtype or layout.reduce_dtype:
        yield "import torch"
    yield "from torch.distributed.device_mesh import init_device_mesh"
    policy = "MixedPrecisionPolicy, " if layout.param_dtype or layout.reduce_dtype else ""
    yield f"from torch.distributed.fsdp import {policy}fully_shard"


def _arguments(layout: Layout, device: str) -> Iterator[str]:
    if layout.replicas > 1:
        shape, names = f"({layout.replicas}, {layout.shards})", '("replicate", "shard")'
    else:
        shape, names = f"({layout.shards},)", '("shard",)'
    yield f'fsdp = {{"mesh": init_device_mesh("{device}", {shape}, mesh_dim_names={names})}}'
    dtypes = [("param_dtype", layout.param_dtype), ("reduce_dtype", layout.reduce_dtype)]
    if given := ", ".join(f"{name}=torch.{dtype}" for name, dtype in dtypes if dtype):
        yield f'fsdp["mp_policy"] = MixedPrecisionPolicy({given})'


def _units(model: TracedModel, layout: Layout) -> Iterator[str]:
    waiting: list[Unit] = []
    for unit in layout.units:
        if waiting and not _together(model, waiting[-1], unit):
            yield from _calls(model, waiting)
            waiting = []
        waiting.append(unit)
    yield from _calls(model, waiting)


def _together(model: TracedModel, one: Unit, two: Unit) -> bool:
    """Whether one loop makes both: single modules of one container, sharded alike."""
    if (
        len(one.modules) > 1
        or len(two.modules) > 1
        or one.reshard != two.reshard
        or type(one.reshard) is not type(two.reshard)
    ):
        return False
    names = [model.modules[unit.modules[0]].name for unit in (one, two)]
    return all(re.search(r"(^|\.)\d+$", name) for name in names) and len({_container(name) for name in names}) == 1


def _container(name: str) -> str:
    return name.rpartition(".")[0]


def _calls(model: TracedModel, units: list[Unit]) -> Iterator[str]:
    reshard = units[0].reshard
    options = "**fsdp" if reshard is None else f"reshard_after_forward={reshard}, **fsdp"
    if len(units) == 1:
        own = [expression(model.modules[place].name) for place in units[0].modules]
        yield f"fully_shard({own[0] if len(own) == 1 else '[' + ', '.join(own) + ']'}, {options})"
        return
    names = [model.modules[unit.modules[0]].name for unit in units]
    container, numbers = _container(names[0]), sorted(int(name.rpartition(".")[2]) for name in names)
    inside = next(module for module in model.modules if module.name == container)
    every = len(inside.children) == len(numbers)
    part = "" if every else f"[{numbers[0]}:{numbers[-1] + 1}]"
    if every or numbers == list(range(numbers[0], numbers[-1] + 1)):
        yield f"for unit in {expression(container)}{part}:"
    else:
        yield f"for unit in [{expression(container)}[number] for number in {numbers}]:"
    yield f"    fully_shard(unit, {options})"


def expression(name: str) -> str:
    """The module of this name, as an expression on ``model``."""
    found = "model"
    for part in name.split(".") if name else []:
        if part.isdigit():
            found += f"[{part}]"
        elif part.isidentifier():
            found += f".{part}"
        else:
            return f'model.get_submodule("{name}")'
    return found


def _ahead(model: TracedModel, layout: Layout) -> Iterator[str]:
    """Chains of units that gather each other early; FSDP2 by itself gathers one ahead in the backward."""
    if not layout.forward_prefetch and not layout.backward_prefetch:
        return
    first = {module: unit for unit in layout.units[:-1] for module in unit.modules}
    order = list(dict.fromkeys(first[place] for place in model.order if place in first))
    yield "units = ["
    for unit in order:
        yield f"    {expression(model.modules[unit.modules[0]].name)},"
    yield "]"
    yield "for place, unit in enumerate(units):"
    if ahead := layout.forward_prefetch:
        yield f"    unit.set_modules_to_forward_prefetch(units[place + 1 : place + {1 + ahead}])"
    if behind := layout.backward_prefetch:
        yield f"    unit.set_modules_to_backward_prefetch(units[max(0, place - {behind}) : place][::-1])"
