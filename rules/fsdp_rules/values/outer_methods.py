"""The effects of methods of objects whose classes are outside of the tree."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from fsdp_rules.ir.operations import ANY, At
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Arguments, Class
from fsdp_rules.values.held_parameters import initialise
from fsdp_rules.values.library import table
from fsdp_rules.values.machine import Machine
from fsdp_rules.values.module_members import NAMES, Call, Parts
from fsdp_rules.values.setters import SETTER
from fsdp_rules.values.state_types import note_state_type

_SECTIONS = {
    Kind.MODEL: "model",
    Kind.PART: "model",
    Kind.OTHER_WRAPPER: "model",
    Kind.PARAMETER: "tensor",
    Kind.GRADIENT: "tensor",
    Kind.NUMBER: "tensor",
    Kind.CONTAINER: "container",
    Kind.ATTRIBUTES: "attributes",
    Kind.OPEN: "container",
}
#: Effects of the methods by which a module of the tree gives what the sharded modules in it have.
_GIVE_PARTS = frozenset({"parameters", "named_parameters", "modules", "named_modules"})
#: Those by which it gives the modules that are its attributes, and what these may be.
_GIVE_CHILDREN = frozenset({"children", "named_children"})
_CHILDREN = frozenset({Kind.MODEL, Kind.PART, Kind.OTHER_WRAPPER, Kind.INSTANCE, Kind.OPEN})


def _call(given: Arguments, key: Hashable) -> Call:
    match key:
        case (str() as path, At() as at, *_):
            return Call(path, at, given.keyword("recurse"))
    return Call("", None, given.keyword("recurse"))


class Methods:
    """One method for each effect; ``to`` is the cell of what the call gives."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._store = machine.store
        self._objects = machine.objects
        self._parts = Parts(machine)

    def call(self, owner: Obj, name: str, given: Arguments, to: int, key: Hashable) -> None:
        """What the method ``name`` of ``owner`` gives."""
        if table("unknown").get(name) == "state_type":
            note_state_type(self._machine, given)
        if owner.kind is Kind.INSTANCE:
            self._of_instance(owner, name, given, to, key)
            return
        if owner.kind is Kind.LOADED:
            self._store.put(to, owner)
            return
        if owner.kind is Kind.PROPERTY:
            for cell in given.positional[:1] if name == "setter" else ():
                self._store.edge(cell, self._machine.attributes.field(owner, SETTER))
            self._store.put(to, owner)
            return
        if owner in self._machine.items.modules and table("model").get(name) in _GIVE_PARTS:
            self._of_inner(table("model")[name], self._machine.items.all(owner), to, _call(given, key))
        if owner.kind is Kind.OPEN:
            self._store.put(to, self._objects.open)
            if table("unknown").get(name) == "called":
                self._called(given, to)
            if owner.is_itself and name in table("named"):
                self._name(owner, given)
            if name in NAMES:
                self._store.put(to, self._parts.named(self._objects.open, None, _call(given, key)))
            if not owner.is_itself:
                return
        section = _SECTIONS.get(owner.kind)
        effect = table(section).get(name) if section is not None else None
        if effect is None or effect == "nothing":
            self._store.put(to, self._objects.open)
        elif effect in ("first", "copied"):
            self._store.put(to, owner if effect == "first" else self._objects.copy_of(owner))
        elif effect == "number":
            is_computed = owner.kind is not Kind.PARAMETER
            self._store.put(to, self._objects.of_model(Kind.NUMBER, owner.since) if is_computed else self._objects.open)
        elif section == "model":
            self._of_module(effect, owner, to, _call(given, key))
        else:
            run: Callable[[Obj, Arguments, int], None] = getattr(self, f"_of_container_{effect}")
            run(owner, given, to)

    def _of_instance(self, owner: Obj, name: str, given: Arguments, to: int, key: Hashable) -> None:
        attributes = self._machine.attributes
        if name in NAMES:
            self._store.put(to, self._parts.named(self._objects.open, None, _call(given, key)))
        if name in table("named"):
            self._name(owner, given)
        elif name == "__init__":
            for name in ("params",) if given.positional else ("params", "module"):
                if (first := given.at(0, name)) is not None:
                    initialise(self._machine, owner, first)
        elif name == "_replace":
            cls = owner.data[0]
            names = cls.body.fields if isinstance(cls, Class) else ()
            for field, cell in given.keywords:
                attributes.save(owner, field, cell)
                if field in names:
                    self._store.edge(cell, self._machine.items.cell(owner, names.index(field)))
            self._store.put(to, owner)
        elif (effect := table("model").get(name, "")) in _GIVE_PARTS:
            held = self._store.cells()
            attributes.every(owner, held)
            self._of_inner(effect, held, to, _call(given, key))
        elif effect in _GIVE_CHILDREN:
            self._give_children(owner, effect, to)
        elif effect == "first":
            self._store.put(to, owner)
        else:
            self._store.put(to, self._objects.open)

    def _give_children(self, owner: Obj, effect: str, to: int) -> None:
        several, pair = (self._objects.get(Kind.CONTAINER, (effect, name, owner)) for name in ("several", "pair"))
        items, held = self._machine.items, self._store.cells()
        self._machine.attributes.every(owner, held)
        child = items.cell(several, ANY)
        if effect == "named_children":
            self._store.put(child, pair)
            child = items.cell(pair, 1)
        self._store.watch(held, lambda one: self._store.put(child, one) if one.kind in _CHILDREN else None)
        self._store.put(to, several)

    def _name(self, owner: Obj, given: Arguments) -> None:
        """``owner`` gets an attribute under the name that is given."""
        name, value = given.at(0, "name"), given.at(1, "module")
        if name is None or value is None:
            return
        save = self._machine.attributes.save
        self._store.watch(name, lambda one: save(owner, str(one.data) if one.kind is Kind.CONSTANT else ANY, value))
        self._machine.items.later(name, lambda: save(owner, ANY, value))

    def _called(self, given: Arguments, to: int) -> None:
        """The first argument is called with the others."""
        called = given._replace(
            positional=given.positional[1:], starred=tuple((place - 1, cell) for place, cell in given.starred)
        )
        for cell in given.positional[:1]:
            self._store.watch(cell, lambda one: self._machine.calls.call(one, called, to, (called, "called")))

    def _of_inner(self, effect: str, held: int, to: int, call: Call) -> None:
        """What a module gives of the sharded ones among those in it."""
        self._store.watch(held, lambda one: self._of_module(effect, one, to, call) if one.kind is Kind.MODEL else None)

    def _of_module(self, effect: str, owner: Obj, to: int, call: Call) -> None:
        since, parts = owner.since, self._parts
        one = self._objects.of_model(Kind.PARAMETER if "parameter" in effect else Kind.PART, since)
        if effect in NAMES or effect == "named_children":
            one = self._objects.open if effect == "named_buffers" else one
            self._store.put(to, parts.named(one, since, call if effect in NAMES else None))
        elif effect in ("parameters", "modules", "children"):
            self._store.put(to, parts.parameters(since) if effect == "parameters" else parts.modules(since))
        elif effect == "state":
            made = self._objects.get(Kind.CONTAINER, (effect, call))
            self._machine.items.dictionaries.add(made)
            self._store.put(self._machine.items.cell(made, ANY), self._objects.open)
            self._store.put(to, made)
        else:
            self._store.put(to, one)

    def _of_container_add(self, owner: Obj, given: Arguments, to: int) -> None:
        for cell in given.positional[:1]:
            self._store.edge(cell, self._machine.items.cell(owner, ANY))

    def _of_container_extend(self, owner: Obj, given: Arguments, to: int) -> None:
        items = self._machine.items
        if owner.kind is Kind.ATTRIBUTES:
            for cell in given.positional[:1]:
                self._store.watch(cell, lambda one: self._update(owner.data, one))
            for name, cell in given.keywords:
                self._machine.attributes.save(owner.data, name, cell)
            return
        for cell in given.positional[:1]:
            self._store.watch(cell, lambda one: items.unpack(one, owner))
        for name, cell in given.keywords:
            items.put(owner, self._objects.constant(name), cell)

    def _of_container_insert(self, owner: Obj, given: Arguments, to: int) -> None:
        for cell in given.positional[1:2]:
            self._store.edge(cell, self._machine.items.cell(owner, ANY))

    def _of_container_set_default(self, owner: Obj, given: Arguments, to: int) -> None:
        self._of_container_take(owner, given, to)
        if len(given.positional) > 1:
            key, value = given.positional[:2]
            self._store.watch(key, lambda one: self._machine.items.put(owner, one, value))

    def _of_container_take(self, owner: Obj, given: Arguments, to: int) -> None:
        if not given.positional:
            self._machine.items.of(owner, None, to)
        for cell in given.positional[:1]:
            self._store.watch(cell, lambda one: self._machine.items.of(owner, one, to))
        for cell in given.positional[1:2]:
            self._store.edge(cell, to)

    def _of_container_items(self, owner: Obj, given: Arguments, to: int) -> None:
        pair, several = (self._objects.get(Kind.CONTAINER, ("items", name, owner)) for name in ("pair", "several"))
        self._machine.items.of(owner, None, self._machine.items.cell(pair, 1))
        self._store.edge(self._machine.items.names(owner), self._machine.items.cell(pair, 0))
        self._store.put(self._machine.items.cell(several, ANY), pair)
        self._store.put(to, several)

    def _of_container_keys(self, owner: Obj, given: Arguments, to: int) -> None:
        several = self._objects.get(Kind.CONTAINER, ("keys", owner))
        self._store.edge(self._machine.items.names(owner), self._machine.items.cell(several, ANY))
        self._store.put(to, several)

    def _of_container_values(self, owner: Obj, given: Arguments, to: int) -> None:
        several = self._objects.get(Kind.CONTAINER, ("values", owner))
        self._machine.items.of(owner, None, self._machine.items.cell(several, ANY))
        self._store.put(to, several)

    def _of_container_set_item(self, owner: Obj, given: Arguments, to: int) -> None:
        if len(given.positional) > 1:
            key, value = given.positional[:2]
            self._store.watch(key, lambda one: self._machine.items.put(owner, one, value))

    def _update(self, owner: Obj, given: Obj) -> None:
        found = self._store.cells()
        self._machine.items.of(given, None, found)
        self._machine.attributes.save(owner, ANY, found)
