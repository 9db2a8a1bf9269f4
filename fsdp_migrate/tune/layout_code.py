"""The ``fully_shard`` calls that make a layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from fsdp_migrate.tune.sharding_layout import Layout, Unit
from fsdp_migrate.tune.traced_model import TracedModel


@dataclass(frozen=True)
class Names:
    """What the statements call the model, the function and variables; ``arguments`` follow a call's own ones."""

    root: str = "model"
    fully_shard: str = "fully_shard"
    unit: str = "unit"
    units: str = "units"
    place: str = "place"
    arguments: str = ", **fsdp"


#: Fields for ``str.format``, as :class:`fsdp_rules.settings.PlannedUnits` has them.
FIELDS = Names("{root}", "{fully_shard}", "{unit}", "{units}", "{place}", "{arguments}")


def code(model: TracedModel, layout: Layout, device: str) -> str:
    """Statements for a plain ``model``, in place of what shards it now; ``device`` is the type of a mesh's devices."""
    names = Names()
    return "\n".join(
        (
            *(*_imports(layout), "", *_arguments(layout, device)),
            *_units(model, layout.units, names),
            *_ahead(model, layout, names),
        )
    )


def units_below(model: TracedModel, layout: Layout) -> tuple[str, ...]:
    """The statements that shard all but the root, with :data:`FIELDS` for names and shared arguments."""
    return tuple(_units(model, layout.units[:-1], FIELDS))


def ahead(model: TracedModel, layout: Layout) -> tuple[str, ...]:
    """The statements behind the root's call, in the same form."""
    return tuple(_ahead(model, layout, FIELDS))


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


def _units(model: TracedModel, units: tuple[Unit, ...], names: Names) -> Iterator[str]:
    waiting: list[_Numbered] = []
    for each in _numbered(model, units):
        if waiting and not (isinstance(each, _Numbered) and each.follows(waiting[0])):
            yield from _loop(model, waiting, names)
            waiting = []
        if isinstance(each, _Numbered):
            waiting.append(each)
        else:
            yield _call([_member(names.root, model.modules[m].name) for m in each.modules], each.reshard, names)
    if waiting:
        yield from _loop(model, waiting, names)


def _numbered(model: TracedModel, units: tuple[Unit, ...]) -> Iterator[_Numbered | Unit]:
    """Units in order, those inside one numbered module together; a unit itself where there is no such module."""
    last: _Numbered | None = None
    for unit in units:
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


def _call(own: list[str], reshard: bool | int | None, names: Names) -> str:
    options = names.arguments if reshard is None else f", reshard_after_forward={reshard}{names.arguments}"
    return f"{names.fully_shard}({own[0] if len(own) == 1 else '[' + ', '.join(own) + ']'}{options})"


def _loop(model: TracedModel, alike: list[_Numbered], names: Names) -> Iterator[str]:
    container, calls = alike[0].container, alike[0].calls
    if len(alike) == 1:
        own = _member(names.root, f"{container}.{alike[0].number}".lstrip("."))
        for modules, reshard in calls:
            yield _call([_member(own, name) for name in modules], reshard, names)
        return
    numbers = sorted(each.number for each in alike)
    inside = next(module for module in model.modules if module.name == container)
    every = len(inside.children) == len(numbers)
    part = "" if every else f"[{numbers[0]}:{numbers[-1] + 1}]"
    if every or numbers == list(range(numbers[0], numbers[-1] + 1)):
        yield f"for {names.unit} in {_member(names.root, container)}{part}:"
    else:
        listed = f"[{_member(names.root, container)}[{names.place}] for {names.place} in {numbers}]"
        yield f"for {names.unit} in {listed}:"
    for modules, reshard in calls:
        yield f"    {_call([_member(names.unit, name) for name in modules], reshard, names)}"


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


def _ahead(model: TracedModel, layout: Layout, names: Names) -> Iterator[str]:
    """Chains of units that gather each other early; FSDP2 by itself gathers one ahead in the backward."""
    if not layout.forward_prefetch and not layout.backward_prefetch:
        return
    first = {module: unit for unit in layout.units[:-1] for module in unit.modules}
    order = list(dict.fromkeys(first[place] for place in model.order if place in first))
    unit, units, place = names.unit, names.units, names.place
    yield f"{units} = ["
    for own in order:
        yield f"    {_member(names.root, model.modules[own.modules[0]].name)},"
    yield "]"
    yield f"for {place}, {unit} in enumerate({units}):"
    if after := layout.forward_prefetch:
        yield f"    {unit}.set_modules_to_forward_prefetch({units}[{place} + 1 : {place} + {1 + after}])"
    if behind := layout.backward_prefetch:
        before = f"{units}[max(0, {place} - {behind}) : {place}][::-1]"
        yield f"    {unit}.set_modules_to_backward_prefetch({before})"
