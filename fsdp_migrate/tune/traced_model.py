"""One forward and backward of a model, as the recorder of ``fsdp_compat`` wrote it: what layouts are judged by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

#: Bytes of one element.
SIZES = {
    "float64": 8,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
    "int16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


@dataclass(frozen=True)
class TracedParameter:
    """One parameter: ``rows`` along its first dimension, of ``row`` elements each; ``places``: who registers it."""

    name: str
    rows: int
    row: int
    dtype: str
    trained: bool
    places: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Elements of the whole parameter."""
        return self.rows * self.row

    def padded(self, shards: int) -> int:
        """Elements of all shards together: each has as many rows as the largest."""
        return -(-self.rows // shards) * self.row * shards


@dataclass(frozen=True)
class TracedModule:
    """One module: its clean name, the name of its class, and its children by their place in the list of modules."""

    name: str
    kind: str
    children: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """Something that happened to a module, or to a parameter in ``grad``.

    ``kind``: "enter" and "exit" a forward ("stop": by an exception), "before" a backward (a gradient of an output),
    "after" it (the gradients of all inputs), "grad" for a parameter's whole gradient, "end" of the backward. ``call``
    numbers forwards. ``recomputes``: inside a backward. ``differentiable``: gradients are enabled. ``flops`` and
    ``saved``: floating-point operations so far, and bytes that autograd holds for the backward, parameters apart.
    ``peak``: the most bytes that the device had allocated since the last event, above what it had before the forward; 0
    if that is unknown. ``passing``: those of them that no layout explains, which operators need while they run.
    """

    kind: str
    subject: int
    call: int = -1
    recomputes: bool = False
    differentiable: bool = True
    flops: int = 0
    saved: int = 0
    peak: int = 0
    passing: int = 0


@dataclass(frozen=True)
class TracedModel:
    """Modules, the root first, parameters and events of one step. ``microbatches``: backwards before one update.

    ``parted``: modules whose gradients as units are added up apart from those of other users of their inputs.
    """

    modules: tuple[TracedModule, ...]
    parameters: tuple[TracedParameter, ...]
    events: tuple[Event, ...]
    microbatches: int = 1
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    parted: frozenset[int] = frozenset()

    @cached_property
    def by_name(self) -> dict[str, int]:
        """Places of the modules in :attr:`modules`."""
        return {module.name: place for place, module in enumerate(self.modules)}

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Modules by their first forward."""
        return tuple(dict.fromkeys(event.subject for event in self.events if event.kind == "enter"))

    def below(self, place: int) -> frozenset[int]:
        """The module and all that it contains."""
        found: set[int] = set()
        left = [place]
        while left:
            here = left.pop()
            if here not in found:
                found.add(here)
                left += self.modules[here].children
        return frozenset(found)


def traced(values: Mapping[str, Any]) -> TracedModel:
    """The model that the recorder wrote as plain values.

    :raises KeyError: the values are of another format.
    """
    model = TracedModel(
        tuple(TracedModule(name, kind, tuple(children)) for name, kind, children in values["modules"]),
        tuple(
            TracedParameter(name, rows, row, dtype, trained, tuple(places))
            for name, rows, row, dtype, trained, places in values["parameters"]
        ),
        tuple(Event(*event) for event in values["events"]),
        values.get("microbatches", 1),
        values.get("optimizer", {}),
        frozenset(values.get("parted", ())),
    )
    return replace(model, events=_with_gradients(model))


def _with_gradients(model: TracedModel) -> tuple[Event, ...]:
    """The events, with those of gradients that the recorder could not see because their parameters were sharded.

    A gradient is whole as soon as the last module that registers its parameter has run its backward.
    """
    seen = {event.subject for event in model.events if event.kind == "grad"}
    last: dict[int, int] = {}
    for position, event in enumerate(model.events):
        if event.kind == "before":
            last[event.subject] = position
    added: dict[int, list[int]] = {}
    for place, parameter in enumerate(model.parameters):
        at = [last[owner] for owner in parameter.places if owner in last]
        if parameter.trained and place not in seen and at:
            added.setdefault(max(at), []).append(place)
    found: list[Event] = []
    for position, event in enumerate(model.events):
        found.append(event)
        after = model.events[min(position + 1, len(model.events) - 1)]
        found += [replace(after, kind="grad", subject=place, call=-1) for place in added.get(position, ())]
    return tuple(found)
