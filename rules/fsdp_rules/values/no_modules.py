"""Which objects are surely no modules."""

from __future__ import annotations

from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.gives import Gives
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.object_classes import is_optimizer
from fsdp_rules.values.setters import family

_MODULES = frozenset({Kind.MODEL, Kind.PART, Kind.OPEN})
#: Base classes outside of the tree that make no modules.
_PLAIN_BASES = frozenset({"builtins.object", "abc.ABC", "enum.Enum", "typing.NamedTuple", "typing.Protocol"})
_NO_MODULES = frozenset(
    {Kind.OPTIMIZER, Kind.OTHER_WRAPPER, Kind.CONSTANT, Kind.NAME, Kind.TEXT, Kind.LOADED, Kind.GROUP}
)


def is_no_module(one: Obj, machine: Interpreter, gives: Gives) -> bool:
    """Whether ``one`` is surely no module."""
    if one.kind is Kind.INSTANCE:
        bases = [base for each in family(one) for cell in each.bases for base in machine.store.of(cell)]
        return all(base.kind is Kind.CLASS or base.data in _PLAIN_BASES or is_optimizer(base.data) for base in bases)
    if one.kind is Kind.CONTAINER:
        return one not in machine.items.modules and not gives.some(_MODULES, one)
    if one.kind is Kind.METHOD:
        return one.data[0].kind in (Kind.INSTANCE, Kind.OPTIMIZER) and is_no_module(one.data[0], machine, gives)
    return one.kind in _NO_MODULES
