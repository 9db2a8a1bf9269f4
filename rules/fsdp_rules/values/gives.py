"""Which containers give what, and what FSDP1's subclasses are given, once nothing changes any more."""

from __future__ import annotations

from functools import cached_property

from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.held_parameters import INSIDE
from fsdp_rules.values.interpreter import Interpreter


class Gives:
    """Answers for the containers of one interpretation."""

    def __init__(self, machine: Interpreter) -> None:
        self._machine = machine
        self._known: dict[tuple[frozenset[Kind], Obj, int], bool] = {}

    @cached_property
    def kept(self) -> frozenset[Obj]:
        """The modules that objects of subclasses of FSDP1's class are given, which stay FSDP1's."""
        attributes = self._machine.attributes
        owners = {owner for owner, _ in attributes.cells() if owner.kind is Kind.INSTANCE}
        cells = [attributes.field(one, INSIDE) for one in owners if INSIDE in attributes.names(one)]
        held = {one for cell in cells for one in self._machine.store.of(cell)}
        return frozenset(held - {self._machine.objects.open})

    def some(self, kinds: frozenset[Kind], container: Obj, depth: int = 2) -> bool:
        """Whether an element of ``container``, or of one in it, is of one of ``kinds``."""
        key = (kinds, container, depth)
        if key not in self._known:
            held = self._machine.store.of(self._machine.items.all(container))
            inner = [one for one in held if one.kind is Kind.CONTAINER and one is not container] if depth else []
            is_own = any(one.kind in kinds for one in held)
            self._known[key] = is_own or any(self.some(kinds, one, depth - 1) for one in inner)
        return self._known[key]

    def is_some(self, kinds: frozenset[Kind], one: Obj) -> bool:
        """Whether ``one`` is of one of ``kinds``, or a container that gives some."""
        return one.kind in kinds or (one.kind is Kind.CONTAINER and self.some(kinds, one))
