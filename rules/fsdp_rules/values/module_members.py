"""What models, their parts, parameters and gradients give by their attributes and methods."""

from __future__ import annotations

from fsdp_rules.values.abstract import Kind, Obj, Objects, Site
from fsdp_rules.values.library import table
from fsdp_rules.values.machine import Machine

#: Attributes that give the module inside, which under FSDP2 is the same object.
INNER = frozenset({"module", "_fsdp_wrapped_module"})
#: What modules of torch call their parameters.
WEIGHTS = frozenset({"weight", "bias"})
#: What torch's optimizers call the tensors that they keep for each parameter.
STATES = frozenset({"exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "momentum_buffer", "square_avg"})
#: Attributes of a tensor that give one of the same values.
_SAME_ATTRIBUTES = frozenset({"data", "T", "mT", "H"})


def is_of_model(name: str) -> bool:
    """Whether each module has the method ``name`` and it is known what it gives."""
    return name in table("model")


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


class Parts:
    """The containers that a model gives its parameters and modules in."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._objects = machine.objects

    def parameters(self, since: Site | None) -> Obj:
        """What ``parameters()`` gives."""
        return self._several("parameters", since, self._objects.of_model(Kind.PARAMETER, since))

    def named_parameters(self, since: Site | None) -> Obj:
        """What ``named_parameters()`` gives."""
        return self._several("named parameters", since, self._pair(Kind.PARAMETER, since))

    def modules(self, since: Site | None) -> Obj:
        """What ``modules()`` and ``children()`` give."""
        return self._several("modules", since, self._objects.of_model(Kind.PART, since))

    def named_modules(self, since: Site | None) -> Obj:
        """What ``named_modules()`` and ``named_children()`` give."""
        return self._several("named modules", since, self._pair(Kind.PART, since))

    def _pair(self, kind: Kind, since: Site | None) -> Obj:
        pair = self._objects.get(Kind.CONTAINER, ("pair", kind, since))
        self._machine.store.put(self._machine.items.cell(pair, 1), self._objects.of_model(kind, since))
        return pair

    def _several(self, name: str, since: Site | None, element: Obj) -> Obj:
        several = self._objects.get(Kind.CONTAINER, (name, since))
        self._machine.store.put(self._machine.items.cell(several, "*"), element)
        return several
