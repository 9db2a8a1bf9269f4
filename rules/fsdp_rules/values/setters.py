"""What properties do with the values that they are given."""

from __future__ import annotations

from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Arguments, Class
from fsdp_rules.values.machine import Machine
from fsdp_rules.values.module_members import inside

#: The field of a property that has the function which its ``setter`` is given.
SETTER = "(setter)"


class Setters:
    """The functions that run where an attribute of an object is written."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._store = machine.store

    def run(self, owner: Obj, name: str, value: int) -> None:
        """Run what a property ``name`` of the class of ``owner`` does with a new ``value``."""
        made = owner.data if owner.kind is Kind.PART and isinstance(owner.data, Obj) else owner
        if made.kind is Kind.MODEL:
            inner, receiver = self._machine.attributes.field(made, "(inner)"), inside(made, self._machine.objects)
            self._store.watch(inner, lambda one: self._of_class(one, receiver, name, value))
        else:
            self._of_class(made, owner, name, value)

    def _of_class(self, made: Obj, receiver: Obj, name: str, value: int) -> None:
        cls = made.data[0] if made.kind is Kind.INSTANCE else None
        for one in (cls, *cls.above) if isinstance(cls, Class) else ():
            if name in one.body.bound:
                found = self._machine.scopes.cell(one.frame, name)
                self._store.watch(found, lambda held: self._call(held, receiver, value))

    def _call(self, held: Obj, receiver: Obj, value: int) -> None:
        def call(function: Obj) -> None:
            bound = self._machine.objects.get(Kind.BOUND, (receiver, function))
            self._machine.calls.call(bound, Arguments((value,)), self._store.cells(), (function, receiver))

        if held.kind is Kind.PROPERTY:
            self._store.watch(self._machine.attributes.field(held, SETTER), call)
