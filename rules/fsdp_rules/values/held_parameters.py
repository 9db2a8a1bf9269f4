"""What an optimizer holds of the parameters that it is given: its groups, and the states of each parameter."""

from __future__ import annotations

from collections.abc import Collection, Hashable

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.ir.operations import ANY
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Class
from fsdp_rules.values.library import table
from fsdp_rules.values.machine import Machine
from fsdp_rules.values.module_members import STATES

#: The attribute of a model that is the module in it.
INSIDE = "(inner)"


def hold(machine: Machine, optimizer: Obj, key: Hashable, given: int) -> None:
    """Give ``optimizer`` its ``param_groups`` and ``state`` of the parameters, or groups, in the cell ``given``."""
    store, items, objects = machine.store, machine.items, machine.objects
    names = ("groups", "group", "params", "states", "state")
    groups, group, several, states, state = (objects.get(Kind.CONTAINER, (key, name)) for name in names)
    for name, one in (("param_groups", groups), ("state", states)):
        cell = store.cells()
        store.put(cell, one)
        machine.attributes.save(optimizer, name, cell)
    store.put(items.cell(groups, ANY), group)
    store.put(items.cell(group, "params"), several)
    store.put(items.cell(states, ANY), state)
    held = items.cell(several, ANY)
    for name in STATES:
        store.edge(held, items.cell(state, name))

    def collect(one: Obj) -> None:
        if one.kind is Kind.PARAMETER:
            store.put(held, one)
        elif one.kind is Kind.CONTAINER:
            inner = store.cells()
            items.of(one, objects.constant("params"), inner)
            items.elements(inner, held)

    elements = store.cells()
    items.elements(given, elements)
    store.watch(elements, collect)


def parameters_of(machine: Machine, optimizer: Obj) -> Collection[Obj]:
    """What is known of the parameters in the groups of ``optimizer``, one of :attr:`Kind.OPTIMIZER`."""
    several = machine.objects.get(Kind.CONTAINER, (optimizer.data, "params"))
    return machine.store.of(machine.items.cell(several, ANY))


def initialise(machine: Machine, made: Obj, given: int) -> None:
    """``made``, of a class of the tree, is given ``given`` by the ``__init__`` of a base class outside of it."""
    cls = made.data[0] if made.kind is Kind.INSTANCE else None
    for one in (cls, *cls.above) if isinstance(cls, Class) else ():
        for base in one.bases:
            machine.store.watch(base, lambda outer: _initialise(machine, made, outer, given))


def _initialise(machine: Machine, made: Obj, outer: Obj, given: int) -> None:
    effect = table("functions").get(outer.data) if outer.kind is Kind.EXTERN else None
    if outer.kind is Kind.EXTERN and canonical(outer.data) == FSDP:
        machine.store.edge(given, machine.attributes.field(made, INSIDE))
    elif effect == "optimizer":
        hold(machine, made, made.data, given)
    elif effect == "same_elements":
        machine.items.elements(given, machine.items.cell(made, ANY))
