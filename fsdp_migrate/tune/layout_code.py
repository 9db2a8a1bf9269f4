"""The ``fully_shard`` calls that make a layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

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


@dataclass(frozen=True)
class _Numbered:
    """Units inside one module of a container: by names that go on from that module's, "" for itself."""

    container: str
    number: int
    calls: tuple[tuple[tuple[str, ...], bool | int | None], ...]

    def follows(self, other: _Numbered) -> bool:
        """Whether one loop makes both."""
        # True is 1 to Python, and another setting to FSDP2.
        return self.container == other.container and repr(self.calls) == repr(other.calls)


def _units(model: TracedModel, layout: Layout) -> Iterator[str]:
    waiting: list[_Numbered] = []
    for each in _numbered(model, layout):
        if waiting and not (isinstance(each, _Numbered) and each.follows(waiting[0])):
            yield from _loop(model, waiting)
            waiting = []
        if isinstance(each, _Numbered):
            waiting.append(each)
        else:
            yield _call([expression(model.modules[place].name) for place in each.modules], each.reshard)
    if waiting:
        yield from _loop(model, waiting)


def _numbered(model: TracedModel, layout: Layout) -> Iterator[_Numbered | Unit]:
    """Units in order, those inside one numbered module together; a unit itself where there is no such module."""
    last: _Numbered | None = None
    for unit in layout.units:
        names = [model.modules[place].name.split(".") for place in unit.modules]
        common = [parts[0] for parts in takewhile(lambda parts: len(set(parts)) == 1, zip(*names, strict=False))]
        depth = next((n for n in range(len(common), 0, -1) if common[n - 1].isdigit()), 0)
        if not depth:
            if last is not None:
                yield last
            last = None
            yield unit
            continue
        container, number = ".".join(common[: depth - 1]), int(common[depth - 1])
        call = (tuple(".".join(name[depth:]) for name in names), unit.reshard)
        if last is not None and (last.container, last.number) == (container, number):
            last = replace(last, calls=(*last.calls, call))
            continue
        if last is not None:
            yield last
        last = _Numbered(container, number, (call,))
    if last is not None:
        yield last


def _call(own: list[str], reshard: bool | int | None) -> str:
    options = "**fsdp" if reshard is None else f"reshard_after_forward={reshard}, **fsdp"
    return f"fully_shard({own[0] if len(own) == 1 else '[' + ', '.join(own) + ']'}, {options})"


def _loop(model: TracedModel, alike: list[_Numbered]) -> Iterator[str]:
    container, calls = alike[0].container, alike[0].calls
    if len(alike) == 1:
        own = expression(f"{container}.{alike[0].number}".lstrip("."))
        for names, reshard in calls:
            yield _call([_member(own, name) for name in names], reshard)
        return
    numbers = sorted(each.number for each in alike)
    inside = next(module for module in model.modules if module.name == container)
    every = len(inside.children) == len(numbers)
    part = "" if every else f"[{numbers[0]}:{numbers[-1] + 1}]"
    if every or numbers == list(range(numbers[0], numbers[-1] + 1)):
        yield f"for unit in {expression(container)}{part}:"
    else:
        yield f"for unit in [{expression(container)}[number] for number in {numbers}]:"
    for names, reshard in calls:
        yield f"    {_call([_member('unit', name) for name in names], reshard)}"


def expression(name: str) -> str:
    """The module of this name, as an expression on ``model``."""
    return _member("model", name)


def _member(owner: str, name: str) -> str:
    found = owner
    for part in name.split(".") if name else []:
        if part.isdigit():
            found += f"[{part}]"
        elif part.isidentifier():
            found += f".{part}"
        else:
            return f'{owner}.get_submodule("{name}")'
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
