"""Attributes of models and their parts: what the module inside has, sharded."""

from __future__ import annotations

from fsdp_rules.ir.operations import ANY
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.machine import Machine
from fsdp_rules.values.module_members import INNER, WEIGHTS, gives_itself, inside, is_of_model


class ModelAttributes:
    """Reads of ``model.name``."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._store = machine.store
        self._objects = machine.objects
        #: What the module inside of a model has for an attribute.
        self._inner: dict[tuple[Obj, str], int] = {}

    def of_model(self, owner: Obj, name: str, to: int) -> None:
        """``to`` is ``owner.name`` of a model."""
        if name in INNER:
            self._store.put(to, owner)
            return
        self._store.edge(self._machine.attributes.field(owner, name), to)
        if is_of_model(name):
            self._store.put(to, self._objects.method(owner, name))
            return
        if name in WEIGHTS:
            self._store.put(to, self._objects.of_model(Kind.PARAMETER, owner.since))
            return
        found = self._inner.get((owner, name))
        if found is None:
            # A model may be inside itself: ``x.head = FSDP(x.head)`` in a loop is FSDP(FSDP(...)).
            found = self._inner[owner, name] = self._store.cells()
            self._store.watch(
                self._machine.attributes.field(owner, "(inner)"), lambda one: self._inside(one, owner, name, found)
            )
        self._store.watch(found, lambda one: self._part(one, owner, to))

    def _inside(self, inner: Obj, owner: Obj, name: str, found: int) -> None:
        if inner.kind is Kind.OPEN:
            self._machine.by_name.method(inside(owner, self._objects), name, found)
        if inner.kind in (Kind.MODEL, Kind.INSTANCE) or inner.is_itself:
            self._machine.attributes.load(inner, name, found)
        self._store.put(found, self._objects.open)

    def _part(self, one: Obj, owner: Obj, to: int) -> None:
        """An attribute of the module inside: modules are parts of the model, functions are what they are.

        A method that is called from outside of the forward finds its own parameters sharded.
        """
        if one.kind is Kind.BOUND and one.data[0].kind is Kind.INSTANCE:
            self._store.put(to, self._objects.get(Kind.BOUND, (inside(owner, self._objects), one.data[1])))
        if one.kind is Kind.INSTANCE:
            self._store.put(to, self._objects.get(Kind.PART, (one, owner.since), one, owner.since))
        elif one in self._machine.items.modules:
            several = self._objects.get(Kind.CONTAINER, ("parts", one, owner.since))
            self._machine.items.modules.add(several)
            elements = self._machine.items.cell(several, ANY)
            self._store.watch(self._machine.items.all(one), lambda each: self._part(each, owner, elements))
            self._store.put(to, several)
        elif one.kind in (Kind.EXTERN, Kind.OPEN, Kind.METHOD):
            self._store.put(to, self._objects.of_model(Kind.PART, owner.since))
        else:
            self._store.put(to, one)

    def of_part(self, owner: Obj, name: str, to: int) -> None:
        """``to`` is ``owner.name`` of a part of one, or of a model in another wrapper."""
        made = owner.data if isinstance(owner.data, Obj) else None
        if made is not None and made.kind is Kind.MODEL and name not in INNER:
            self.of_model(made, name, to)
            return
        if owner.kind is Kind.OTHER_WRAPPER:
            target = (
                self._machine.attributes.field(owner, "(inner)")
                if name in INNER
                else self._machine.attributes.field(owner, name)
            )
            self._store.edge(target, to)
            if gives_itself(name):
                self._store.put(to, self._objects.method(owner, name))
            return
        self._store.edge(self._machine.attributes.field(owner, name), to)
        if is_of_model(name):
            self._store.put(to, self._objects.method(owner, name))
        elif name in WEIGHTS:
            self._store.put(to, self._objects.of_model(Kind.PARAMETER, owner.since))
        elif made is None:
            self._store.put(to, owner)
        else:
            found = self._store.cells()
            self._machine.attributes.load(made, name, found)
            self._store.watch(found, lambda one: self._part(one, owner, to) if one.kind is Kind.INSTANCE else None)
            self._store.put(to, self._objects.of_model(Kind.PART, owner.since))
