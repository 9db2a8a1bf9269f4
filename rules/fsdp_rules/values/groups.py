"""Process groups of which the code that makes them says that they are of some of the ranks."""

from __future__ import annotations

from fsdp_rules.ir.operations import ANY, Body, Display, Element, SetItem
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.machine import Machine


def is_part(group: Obj, machine: Machine) -> bool:
    """Whether ``group`` is of some ranks: they are written out, left out by a comprehension, or a range from not 0.

    Ranks that are only known at run time may be all ranks.
    """
    return group.data is True or any(_are_some(one, machine) for cell in group.data for one in machine.store.of(cell))


def _are_some(ranks: Obj, machine: Machine) -> bool:
    if ranks.kind is not Kind.CONTAINER:
        return False
    frame, value = ranks.data
    if isinstance(frame, Frame) and isinstance(value, int) and not _is_all_of_another(frame.body, value):
        return True
    first = machine.store.of(machine.items.cell(ranks, ANY))
    return any(one is not machine.objects.open and one.data != 0 for one in first)


def _is_all_of_another(body: Body, display: int) -> bool:
    """Whether ``display`` is a comprehension that has each element of something as it is."""
    place = next(at for at, one in enumerate(body.operations) if isinstance(one, Display) and one.to == display)
    given = body.operations[place - 1] if place else None
    return isinstance(given, Element) and SetItem(display, None, given.to) in body.operations[place + 1 :]
