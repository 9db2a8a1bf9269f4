"""The fields of an object whose class has no ``__init__`` of its own, as those of dataclasses and named tuples."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from fsdp_rules.values.abstract import Obj
from fsdp_rules.values.frames import Arguments
from fsdp_rules.values.machine import Machine


def fill(machine: Machine, made: Obj, names: Sequence[str], given: Arguments) -> None:
    """Give ``made`` the fields ``names`` of what a call is ``given``, as attributes and as entries."""
    attributes, items, store = machine.attributes, machine.items, machine.store

    def taken(name: str, key: Hashable, cell: int) -> int:
        """The cell of the field ``name``, which gets the entry ``key`` of what is in ``cell``."""
        found, entry = store.cells(), machine.objects.constant(key)
        store.watch(cell, lambda one: items.of(one, entry, found))
        attributes.save(made, name, found)
        return found

    for place, cell in enumerate(given.positional):
        if place < len(names):
            attributes.save(made, names[place], cell)
            attributes.given.add((made, names[place]))
            store.edge(cell, items.cell(made, place))
    for name, cell in given.keywords:
        attributes.save(made, name, cell)
        attributes.given.add((made, name))
        if name in names:
            store.edge(cell, items.cell(made, names.index(name)))
    for start, cell in given.starred:
        for place in range(start, len(names)):
            store.edge(taken(names[place], place - start, cell), items.cell(made, place))
    for cell in given.packed:
        for name in names:
            taken(name, name, cell)
