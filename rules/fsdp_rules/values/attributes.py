"""Attributes of objects: of instances by their classes, of models by the module inside, of modules by their names."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache

from fsdp_rules.ir.operations import ANY, Body, Define, SetAttribute, Text
from fsdp_rules.project.texts import NO_MODEL
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Arguments, Class
from fsdp_rules.values.library import table
from fsdp_rules.values.machine import Machine
from fsdp_rules.values.model_attributes import ModelAttributes
from fsdp_rules.values.module_members import NAMES, of_parameter
from fsdp_rules.values.object_classes import class_of, overrides
from fsdp_rules.values.partials import of_partial
from fsdp_rules.values.setters import Setters, defines

_GETTER = "__getattr__"


class Attributes:
    """Reads and writes of ``x.name``."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._store = machine.store
        self._objects = machine.objects
        self._setters = Setters(machine)
        self._models = ModelAttributes(machine)
        self._set_at_first = cache(_set_at_first)
        self._fields: dict[tuple[Obj, str], int] = {}
        self._named: dict[Obj, list[str]] = {}
        self._all: dict[Obj, list[int]] = {}
        self._loaded: set[tuple[Obj, str, int]] = set()
        self._searched: set[tuple[Class, str, Obj | None, int, Obj | None]] = set()
        self._saved: set[tuple[Obj, str]] = set()
        #: The fields of objects that the call which makes them gives, so that no default of the class counts.
        self.given: set[tuple[Obj | None, str]] = set()
        #: Reads of attributes that may be among those which are written under a name that only the program knows.
        self._waiting: list[tuple[Obj, Class | None, str, int]] = []

    def field(self, owner: Obj, name: str) -> int:
        """The cell of an attribute of one object."""
        known = self._fields.get((owner, name))
        if known is None:
            known = self._fields[owner, name] = self._store.cells()
            self._named.setdefault(owner, []).append(name)
            for to in self._all.get(owner, ()):
                self._store.edge(known, to)
        return known

    def cells(self) -> Iterator[tuple[Obj, int]]:
        """The cells of all attributes, with the objects that these are of."""
        return ((owner, cell) for (owner, _), cell in self._fields.items())

    def names(self, owner: Obj) -> list[str]:
        """The attributes of one object that something reads or writes."""
        return self._named.get(owner, [])

    def every(self, owner: Obj, to: int) -> None:
        """``to`` is each attribute of ``owner``."""
        if owner.kind is Kind.MODULE:
            self._machine.modules.members(owner, to)
            return
        owners = [owner]
        cls = owner.data[0] if owner.kind is Kind.INSTANCE else None
        for family in (cls, *cls.above) if isinstance(cls, Class) else ():
            owners.append(self.any_of(family))
            if owner.data[1] is None:
                family.whole.append(to)
                for cell in family.fields.values():
                    self._store.edge(cell, to)
        for one in owners:
            self._all.setdefault(one, []).append(to)
            for name in tuple(self._named.get(one, ())):
                self._store.edge(self.field(one, name), to)

    def methods(self, owner: Obj, text: Text, to: int) -> None:
        """``to`` is any method of ``owner`` that may be called ``text``."""
        cls = owner.data[0]
        for one in (cls, *cls.above) if isinstance(cls, Class) and text.beginning else ():
            for name in sorted(filter(text.may_be, one.body.bound)):
                self._of_class(cls, name, owner, to)

    def load(self, owner: Obj, name: str, to: int) -> None:
        """``to`` is ``owner.name``."""
        if (owner, name, to) in self._loaded:
            return
        self._loaded.add((owner, name, to))
        kind, store, objects = owner.kind, self._store, self._objects
        if name == "__dict__" and (kind in (Kind.MODULE, Kind.INSTANCE) or owner.is_itself):
            store.put(to, objects.get(Kind.ATTRIBUTES, owner))
        elif kind is Kind.MODULE:
            self._machine.modules.member(owner, name, to)
        elif kind is Kind.EXTERN:
            store.put(to, objects.extern(f"{owner.data}.{name}"))
        elif kind is Kind.INSTANCE:
            self._of_instance(owner, name, to)
        elif kind is Kind.CLASS:
            store.edge(self.field(owner, name), to)
            self._of_class(owner.data, name, None, to)
            if name == "_make":
                store.put(to, objects.method(owner, name))
        elif kind is Kind.SUPER:
            receiver, cls = owner.data
            for base in cls.bases:
                store.watch(base, lambda one: self._of_base(one, name, receiver, to, class_of(receiver)))
        elif kind is Kind.MODEL:
            self._models.of_model(owner, name, to)
        elif kind in (Kind.PART, Kind.OTHER_WRAPPER):
            self._models.of_part(owner, name, to)
        elif kind in (Kind.PARAMETER, Kind.GRADIENT, Kind.NUMBER):
            store.put(to, of_parameter(owner, name, objects))
        elif kind is Kind.OPEN:
            self._of_unknown(owner, name, to)
        elif kind is Kind.LOADED or (kind is Kind.BOUND and name == "__self__"):
            store.put(to, owner if kind is Kind.LOADED else owner.data[0])
        elif kind is Kind.PARTIAL and name in ("func", "args", "keywords"):
            of_partial(self._machine, owner, name, to)
        elif kind not in (Kind.CONSTANT, Kind.TEXT):
            store.edge(self.field(owner, name), to)
            store.put(to, objects.method(owner, name))

    def save(self, owner: Obj, name: str, value: int) -> None:
        """``owner.name = value``."""
        if owner.kind is Kind.MODULE:
            frame = self._machine.modules.run(owner.data[0]) if owner.data[0] else None
            if frame is not None:
                frame.body.bound.add(name)
                self._store.edge(value, self._machine.scopes.cell(frame, name))
        elif owner is not self._objects.open and owner.kind not in (Kind.CONSTANT, Kind.TEXT, Kind.EXTERN):
            if self._setters.take(owner, name, value):
                return
            if owner.kind is Kind.INSTANCE and owner.data[1] is None:
                owner = self.any_of(owner.data[0])
            self._saved.add((owner, name))
            self._store.edge(value, self.field(owner, name))
            if owner.kind is Kind.INSTANCE and isinstance(owner.data[0], Class) and owner.data[1] is not None:
                self._store.edge(value, self._class_field(owner.data[0], name))

    def _of_unknown(self, owner: Obj, name: str, to: int) -> None:
        """What is written to the object is there; all else may be anything."""
        self._store.put(to, self._objects.open)
        is_known = owner.is_itself and (name in table("container") or name in table("named"))
        if is_known or name in table("unknown") or name in NAMES:
            self._store.put(to, self._objects.method(owner, name))
        if owner.is_itself:
            self._store.edge(self.field(owner, name), to)
            self._waiting.append((owner, None, name, to))

    # Instances

    def any_of(self, cls: Class, method: str = "") -> Obj:
        """An object of a class of which no call that makes one is seen, as its ``method`` gets it."""
        return self._objects.get(Kind.INSTANCE, (cls, None, method))

    def _class_field(self, cls: Class, name: str) -> int:
        """The cell of what ``name`` is in each object of the class that a call makes."""
        if name not in cls.fields:
            cls.fields[name] = self._store.cells()
            for to in cls.whole:
                self._store.edge(cls.fields[name], to)
        return cls.fields[name]

    def _of_instance(self, owner: Obj, name: str, to: int) -> None:
        cls, site = owner.data[:2]
        self._store.edge(self.field(owner, name), to)
        if not isinstance(cls, Class):
            if cls == "outer":
                self._store.put(to, self._objects.method(owner, name))
            return
        if name != ANY:
            self._waiting.append((owner, cls, name, to))
            self._of_class(cls, name, owner, to)
            self._by_getter(cls, name, owner, to)
        is_any = site is None
        method = owner.data[2] if is_any else ""
        cls.readers.append((name, to, is_any, method))
        self._reader(cls, name, to, is_any)
        for one in cls.above:
            self._reader(one, name, to, is_any)
        for one in cls.below if is_any else ():
            if not overrides(one, cls, method):
                self._of_lower(one, name, owner, to)

    def _by_getter(self, cls: Class, name: str, owner: Obj, to: int) -> None:
        """What the class's ``__getattr__`` gives for a name that it does not have."""
        family = (cls, *cls.above)
        bound = set[str]().union(*(one.body.bound for one in family))
        made = next((self._set_at_first(one.body) for one in family if "__init__" in one.body.bound), ())
        if _GETTER in bound and name not in bound and name not in made and not name.startswith("__"):
            given, getters = self._store.holding(self._objects.constant(name)), self._store.cells()
            self._of_class(cls, _GETTER, owner, getters)
            call = self._machine.calls.call
            self._store.watch(getters, lambda one: call(one, Arguments((given,)), to, (owner, name)))

    def is_written(self, owner: Obj, name: str) -> bool:
        """Whether something gives ``owner`` the attribute."""
        return (owner, name) in self._saved

    def own_like(self, names: Collection[str]) -> set[Class]:
        """The classes of the tree whose objects something gives an attribute with one of ``names``."""
        owners = {owner for owner, name in self._saved if owner.kind is Kind.INSTANCE and name in names}
        return {one.data[0] for one in owners if isinstance(one.data[0], Class)}

    def settle(self) -> None:
        """Take what is written under names that are not known for attributes that nothing writes by their names."""
        waiting, self._waiting = self._waiting, []
        for owner, cls, name, to in waiting:
            family = () if cls is None else (cls, *cls.above)
            owners = (owner, *(self.any_of(one) for one in family))
            is_written = any((one, name) in self._saved for one in owners)
            if is_written or any(name in one.body.bound for one in family) or NO_MODEL.search(name):
                continue
            for some in owners:
                self._store.edge(self.field(some, ANY), to)
            for one in family if cls is not None and owner.data[1] is None else ():
                self._store.edge(self._class_field(one, ANY), to)

    def _reader(self, cls: Class, name: str, to: int, is_any: bool) -> None:
        self._store.edge(self.field(self.any_of(cls), name), to)
        if is_any:
            self._store.edge(self._class_field(cls, name), to)

    def _of_lower(self, lower: Class, name: str, owner: Obj, to: int) -> None:
        """The object is one of a class below: it has what that defines, and what objects of its other bases have."""
        for one in (lower, *lower.above):
            self._reader(one, name, to, True)
        self._of_class(lower, name, owner, to)

    def relate(self, cls: Class, base: Obj) -> None:
        """``base`` is a base class of ``cls``."""
        if base.kind is not Kind.CLASS or not isinstance(base.data, Class):
            return
        for lower in (cls, *cls.below):
            for upper in (base.data, *base.data.above):
                if upper in lower.above or upper is lower:
                    continue
                lower.above.append(upper)
                upper.below.append(lower)
                for name, to, is_any, _ in tuple(lower.readers):
                    self._reader(upper, name, to, is_any)
                for name, to, is_any, method in tuple(upper.readers):
                    if is_any and not overrides(lower, upper, method):
                        self._of_lower(lower, name, self.any_of(upper, method), to)

    def of_class(self, cls: Class, name: str, receiver: Obj | None, to: int) -> None:
        """``to`` is what the class, or a base class, calls ``name``; functions are bound to ``receiver``."""
        self._of_class(cls, name, receiver, to)

    def _of_class(self, cls: Class, name: str, receiver: Obj | None, to: int, first: Obj | None = None) -> None:
        """``first`` is the class that was asked, where ``cls`` is a base class of it."""
        first = first or cls.frame.owner
        if (cls, name, receiver, to, first) in self._searched:
            return
        self._searched.add((cls, name, receiver, to, first))
        if name in cls.body.bound:
            cell = self._machine.scopes.cell(cls.frame, name)
            if (receiver, name) not in self.given:
                self._store.watch(cell, lambda one: self._bound(one, first, receiver, to))
                self._store.hand_none(cell, to)
            return
        for base in cls.bases:
            self._store.watch(base, lambda one: self._of_base(one, name, receiver, to, first))

    def _of_base(self, base: Obj, name: str, receiver: Obj | None, to: int, first: Obj | None) -> None:
        if base.kind is Kind.CLASS and isinstance(base.data, Class):
            self._of_class(base.data, name, receiver, to, first)
        elif base.kind in (Kind.EXTERN, Kind.OPEN) and receiver is not None and receiver.kind is not Kind.CLASS:
            self._store.put(to, self._objects.method(receiver, name))

    def _bound(self, one: Obj, cls: Obj | None, receiver: Obj | None, to: int) -> None:
        if one.kind is Kind.FUNCTION and receiver is not None:
            self._store.put(to, self._objects.get(Kind.BOUND, (receiver, one)))
        elif one.kind is Kind.PROPERTY:
            if receiver is not None:
                bound = self._objects.get(Kind.BOUND, (receiver, one.data))
                self._machine.calls.call(bound, Arguments(), to, (one, receiver))
        elif one.kind is Kind.CLASS_METHOD:
            self._store.put(to, self._objects.get(Kind.BOUND, (cls, one.data)))
        elif receiver is not None and defines(one, "__get__"):
            self._machine.calls.method(one, "__get__", (self._store.holding(receiver),), to)
        else:
            self._store.put(to, one)


def _set_at_first(body: Body) -> frozenset[str]:
    """The attributes that each run of a class's ``__init__`` sets."""
    own = [one.body for one in body.every(Define) if one.body.name == "__init__"]
    return frozenset(
        one.name
        for init in own
        for place, one in enumerate(init.operations)
        if isinstance(one, SetAttribute) and one.of == 0 and not any(place in arm for arms in init.arms for arm in arms)
    )
