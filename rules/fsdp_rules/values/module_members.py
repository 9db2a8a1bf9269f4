"""What models, their parts, parameters and gradients give by their attributes and methods."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from fsdp_rules.ir.operations import At
from fsdp_rules.values.abstract import Kind, Obj, Objects, Site
from fsdp_rules.values.library import table
from fsdp_rules.values.machine import Machine

#: Attributes that give the module inside, which under FSDP2 is the same object.
INNER = frozenset({"module", "_fsdp_wrapped_module"})
#: What modules of torch call their parameters.
WEIGHTS = frozenset({"weight", "bias"})
#: Methods that give names which have those of units in them.
NAMES = frozenset({"named_parameters", "named_modules", "named_buffers"})
#: What torch's optimizers call the tensors that they keep for each parameter.
STATES = frozenset({"exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "momentum_buffer", "square_avg"})
#: Attributes of a tensor that give one of the same values.
_SAME_ATTRIBUTES = frozenset({"data", "T", "mT", "H"})


def is_of_model(name: str) -> bool:
    """Whether each module has the method ``name`` and it is known what it gives."""
    return name in table("model")


def gives_itself(name: str) -> bool:
    """Whether each module has the method ``name``, which gives the module."""
    return table("model").get(name) == "first"


def inside(model: Obj, objects: Objects) -> Obj:
    """The module inside of ``model`` as its own methods see it."""
    return objects.get(Kind.PART, ("inside", model.since), model, model.since)


def of_parameter(owner: Obj, name: str, objects: Objects) -> Obj:
    """The attribute ``name`` of a parameter or a gradient."""
    if name in _SAME_ATTRIBUTES:
        return owner
    if name == "grad":
        return objects.of_model(Kind.GRADIENT, owner.since)
    return objects.method(owner, name)


class Call(NamedTuple):
    """Where a module is asked for its members, and the cell of what says whether with those of its own modules."""

    path: str
    at: At | None
    recurse: int | None


class Parts:
    """The containers that a model gives its parameters and modules in."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._objects = machine.objects

    def parameters(self, since: Site | None) -> Obj:
        """What ``parameters()`` gives."""
        return self._several("parameters", since, self._objects.of_model(Kind.PARAMETER, since))

    def modules(self, since: Site | None) -> Obj:
        """What ``modules()`` and ``children()`` give."""
        return self._several("modules", since, self._objects.of_model(Kind.PART, since))

    def named(self, one: Obj, since: Site | None, call: Call | None) -> Obj:
        """What gives ``one`` with its name, as ``named_parameters()``.

        Without a ``call`` that name has no name of a unit in it.
        """
        store, items = self._machine.store, self._machine.items
        pair = self._objects.get(Kind.CONTAINER, ("pair", one.kind, since, call))
        store.put(items.cell(pair, 1), one)
        if call is not None:
            self._name(call, since, items.cell(pair, 0))
        return self._several("named", (one.kind, since, call), pair)

    def _name(self, call: Call, since: Site | None, to: int) -> None:
        store, is_own = self._machine.store, self._objects.constant(False)
        name = self._objects.get(Kind.NAME, (call.path, call.at, since), since=since)
        if call.recurse is None:
            store.put(to, name)
        else:
            store.watch(call.recurse, lambda held: store.put(to, name) if held is not is_own else None)

    def _several(self, name: str, key: Hashable, element: Obj) -> Obj:
        several = self._objects.get(Kind.CONTAINER, (name, key))
        self._machine.store.put(self._machine.items.cell(several, "*"), element)
        return several
