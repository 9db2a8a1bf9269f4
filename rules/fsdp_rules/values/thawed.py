"""Models whose parameters may get gradients again after they were frozen."""

from __future__ import annotations

from collections.abc import Iterator

from fsdp_rules.ir.operations import Call, GetAttribute, SetAttribute
from fsdp_rules.values.abstract import Kind
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter

_OF_MODELS = frozenset({Kind.MODEL, Kind.PART, Kind.PARAMETER, Kind.OPEN})


def thawed(machine: Interpreter) -> frozenset[tuple[str, int] | None]:
    """The wraps of models for which ``requires_grad`` may be set to anything but False; None where it may be any."""
    found: set[tuple[str, int] | None] = {None} if machine.is_bounded else set()
    for frame in machine.frames:
        for owner, value in _writes(frame):
            given = machine.store.of(value) if value is not None else ()
            if not given or any(one.kind is not Kind.CONSTANT or one.data is not False for one in given):
                held = (one for one in machine.store.of(owner) if one.kind in _OF_MODELS)
                found |= {one.since.place if one.since is not None else None for one in held}
    return frozenset(found)


def _writes(frame: Frame) -> Iterator[tuple[int, int | None]]:
    """The cells of what ``requires_grad`` is set of, and to; without a cell it is set to True."""
    owners: dict[int, int] = {}
    for one in frame.body.operations:
        match one:
            case GetAttribute(name="requires_grad_"):
                owners[one.to] = one.of
            case SetAttribute(name="requires_grad"):
                yield frame.base + one.of, frame.base + one.value
            case Call(of=called) if called in owners:
                given = [*one.args, *(value for _, value in one.keywords)]
                yield frame.base + owners[called], frame.base + given[0] if given else None
