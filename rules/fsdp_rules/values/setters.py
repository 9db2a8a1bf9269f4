"""What properties and descriptors do with the values that they are given."""

from __future__ import annotations

from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Arguments, Class
from fsdp_rules.values.machine import Machine
from fsdp_rules.values.module_members import inside

#: The field of a property that has the function which its ``setter`` is given.
SETTER = "(setter)"


def family(one: Obj) -> list[Class]:
    """The class of an instance, and those above it."""
    cls = one.data[0] if one.kind is Kind.INSTANCE else None
    return [cls, *cls.above] if isinstance(cls, Class) else []


def defines(one: Obj, method: str) -> bool:
    """Whether ``one`` is an object whose class defines ``method``."""
    return any(method in cls.body.bound for cls in family(one))


class Setters:
    """The functions that run where an attribute of an object is written."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._store = machine.store

    def take(self, owner: Obj, name: str, value: int) -> bool:
        """Run what a property or descriptor ``name`` of the class of ``owner`` does with a new ``value``.

        Whether a descriptor takes the value, so that the object itself does not have it.
        """
        made = owner.data if owner.kind is Kind.PART and isinstance(owner.data, Obj) else owner
        if made.kind is Kind.MODEL:
            inner, receiver = self._machine.attributes.field(made, "(inner)"), inside(made, self._machine.objects)
            self._store.watch(inner, lambda one: self._of_class(one, receiver, name, value))
        else:
            self._of_class(made, owner, name, value)
        return any(defines(held, "__set__") for cell in self._cells(made, name) for held in self._store.of(cell))

    def _of_class(self, made: Obj, receiver: Obj, name: str, value: int) -> None:
        for cell in self._cells(made, name):
            self._store.watch(cell, lambda held: self._call(held, receiver, value))

    def _cells(self, made: Obj, name: str) -> list[int]:
        """The cells of what the classes of an instance call ``name``."""
        return [self._machine.scopes.cell(one.frame, name) for one in family(made) if name in one.body.bound]

    def _call(self, held: Obj, receiver: Obj, value: int) -> None:
        def call(function: Obj) -> None:
            bound = self._machine.objects.get(Kind.BOUND, (receiver, function))
            self._machine.calls.call(bound, Arguments((value,)), self._store.cells(), (function, receiver))

        if held.kind is Kind.PROPERTY:
            self._store.watch(self._machine.attributes.field(held, SETTER), call)
        elif defines(held, "__set__"):
            self._machine.calls.method(held, "__set__", (self._store.holding(receiver), value), self._store.cells())
