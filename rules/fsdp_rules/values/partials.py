"""What partial objects are made of: ``func``, ``args`` and ``keywords``."""

from __future__ import annotations

from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.machine import Machine


def of_partial(machine: Machine, owner: Obj, name: str, to: int) -> None:
    """``to`` is the function, or the arguments, of a partial object; those of a partial object of one are joined."""
    called, bound = owner.data
    if name == "func":
        machine.store.watch(called, lambda one: _innermost(machine, one, to))
        return
    items, given = machine.items, machine.objects.get(Kind.CONTAINER, (owner, name))
    below = machine.store.cells()
    machine.store.put(to, given)
    machine.store.watch(below, lambda one: items.unpack(one, given))
    machine.store.watch(called, lambda one: _below(machine, one, name, below))
    if name == "args":
        pairs = enumerate(bound.positional)
    else:
        items.dictionaries.add(given)
        pairs = bound.keywords
        for cell in bound.packed:
            machine.store.watch(cell, lambda one: items.unpack(one, given))
    for key, cell in pairs:
        items.put(given, machine.objects.constant(key), cell)


def _innermost(machine: Machine, one: Obj, to: int) -> None:
    if one.kind is Kind.PARTIAL:
        machine.attributes.load(one, "func", to)
    else:
        machine.store.put(to, one)


def _below(machine: Machine, one: Obj, name: str, to: int) -> None:
    if one.kind is Kind.PARTIAL:
        machine.attributes.load(one, name, to)
