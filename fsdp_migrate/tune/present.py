"""The recorded program: its model, the layout that it has now, and the machine that it may be meant for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fsdp_migrate.tune.fsdp1_replay import Fsdp1
from fsdp_migrate.tune.replay import replay
from fsdp_migrate.tune.sharding_layout import Layout, Unit
from fsdp_migrate.tune.traced_model import Event, TracedModel, traced

#: What a device's name contains, and the machine that has it.
_DEVICES = {"H200": "h200-sxm", "H100": "h100-sxm", "A100": "a100-80gb-sxm", "L40S": "l40s-pcie", "cpu": "cpu-gloo"}


@dataclass(frozen=True)
class Present:
    """``kind``: "FSDP1", "FSDP2", or "plain" for a model that is not sharded. ``device``: its name, or "cpu".

    ``fsdp1``: its settings, and the model with all events of a run under it; None where the program has none.
    """

    model: TracedModel
    layout: Layout
    kind: str
    device: str
    fsdp1: tuple[TracedModel, Fsdp1] | None = None

    @property
    def machine(self) -> str | None:
        """The known machine that has this device, if there is one."""
        return next((name for part, name in _DEVICES.items() if part in self.device), None)


def present(values: Mapping[str, Any], ranks: int | None = None) -> Present:
    """What the recorder wrote. ``ranks``: plan for so many, with as many replicas where there are some.

    :raises ValueError: no backward was recorded, or ``ranks`` cannot be divided by the shards of the present layout.
    """
    if not any(event[0] == "before" for event in values["events"]):
        raise ValueError(
            "the model had no backward before the first optimizer step; the recorder cannot see the backward of "
            "compiled models"
        )
    model, now = traced(values), values["layout"]
    fsdp1 = (model, Fsdp1(**now["fsdp1"])) if now.get("fsdp1") else None
    if now["kind"] == "FSDP1":
        model = replace(model, events=tuple(_without_frozen(model)))
    layout = Layout(
        "now",
        tuple(Unit(tuple(places), reshard) for places, reshard in now["units"]),
        now["shards"],
        now["replicas"],
        now["param_dtype"],
        now["reduce_dtype"],
        microbatches=model.microbatches,
    )
    recorded = layout
    if ranks is not None and ranks != layout.ranks:
        layout = replace(layout, replicas=ranks) if now["kind"] == "plain" else _scaled(layout, ranks)
    model = replace(model, events=tuple(with_passing(model, recorded)))
    return Present(model, layout, now["kind"], values["device"], fsdp1)


def with_passing(model: TracedModel, layout: Layout) -> Iterator[Event]:
    """The events with what the device had allocated beyond what ``layout``, under which it was recorded, explains."""
    marks = replay(model, layout).marks
    for place, event in enumerate(model.events):
        # Hooks of a unit run before the event that is recorded, or after it.
        yield replace(event, passing=max(0, event.peak - max(marks[max(0, place - 1)], marks[place])))


def _without_frozen(model: TracedModel) -> Iterator[Event]:
    """The events, without backwards of what runs before any trained parameter is used.

    FSDP1 has them, if a frozen parameter is in one flat parameter with a trained one; FSDP2 and a plain model do not.
    """
    trained = {place for parameter in model.parameters if parameter.trained for place in parameter.places}
    began = False
    #: Of each call, whether one was used before it began, and before it ended.
    inputs: dict[int, bool] = {}
    outputs: dict[int, bool] = {}
    for event in model.events:
        if event.kind == "enter":
            inputs[event.call] = began
            began = began or event.subject in trained
        elif event.kind in ("exit", "stop"):
            outputs[event.call] = began
        calls = {"before": outputs, "after": inputs}.get(event.kind, {})
        if calls.get(event.call, True):
            yield event


def _scaled(layout: Layout, ranks: int) -> Layout:
    if layout.replicas == 1:
        return replace(layout, shards=ranks)
    if ranks % layout.shards:
        raise ValueError(f"{ranks} ranks cannot be divided into replicas of {layout.shards} shards")
    return replace(layout, replicas=ranks // layout.shards)
