"""Which types of states a tree sets."""

from __future__ import annotations

from collections.abc import Collection

from fsdp_rules.fsdp1.names import canonical
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Arguments
from fsdp_rules.values.machine import Machine


def note_state_type(machine: Machine, given: Arguments) -> None:
    """A call of ``state_dict_type`` or ``set_state_dict_type``, of a model or of FSDP1's class."""
    cell = given.at(1, "state_dict_type")
    if cell is None:
        cell = machine.wraps.spread(1, "state_dict_type", given)
        if not (given.starred or given.packed):
            machine.store.put(cell, machine.objects.open)
    machine.store.demand(cell)
    machine.state_types.append(cell)


def is_whole(held: Collection[Obj]) -> bool:
    """Whether a type of states that is one of ``held`` is surely that of whole ones, or one that was set before."""
    names = {canonical(one.data) if one.kind is Kind.EXTERN else "" for one in held}
    return bool(names) and names <= {"StateDictType.FULL_STATE_DICT", "StateDictSettings.state_dict_type"}
