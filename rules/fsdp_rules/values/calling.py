"""Calls: of functions in one frame for each place that calls them, of classes, and of what is outside of the tree."""

from __future__ import annotations

from collections.abc import Hashable

from fsdp_rules.fsdp1.names import canonical
from fsdp_rules.ir import operations as ops
from fsdp_rules.ir.operations import Body
from fsdp_rules.values.abstract import PACKED, Kind, Obj
from fsdp_rules.values.effects import Effects
from fsdp_rules.values.filled_fields import fill
from fsdp_rules.values.frames import Arguments, Class, Definition, Frame, is_gathered
from fsdp_rules.values.machine import Machine
from fsdp_rules.values.model_wraps import WRAP, is_framed, wraps
from fsdp_rules.values.object_classes import NO_OPTIMIZERS, OPTIMIZER, copies_whole
from fsdp_rules.values.outer_methods import Methods
from fsdp_rules.values.running import run_body

#: How many contexts a function has before all further calls share one; a small one, such as a helper that gives back
#: what it is given, has more.
CONTEXTS, OF_SMALL, SMALL = 4, 40, 30
SUPER = "builtins.super"
#: What may be called in a frame of its own for each frame that calls it.
_FRAMED = frozenset({Kind.FUNCTION, Kind.BOUND, Kind.PARTIAL})


class Calls:
    """Joins arguments with parameters, and returned values with the results of calls."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._store = machine.store
        self._effects = Effects(machine)
        self._methods = Methods(machine)
        self._frames: dict[tuple[Frame, Body, bool], dict[Hashable, Frame]] = {}

    def is_called(self, function: Obj) -> bool:
        """Whether a call of ``function`` is seen."""
        return any((function.data.frame, function.data.body, each) in self._frames for each in (False, True))

    def callers(self, body: Body) -> list[Hashable]:
        """What stands for the calls of ``body``: the path and the place of each, where it is called as itself."""
        return [key for (_, one, _), known in self._frames.items() if one is body for key in known]

    def call_in(self, frame: Frame, one: ops.Call) -> None:
        """A call that stands in ``frame``."""
        base, to = frame.base, frame.base + one.to
        given = Arguments.of(base, one)
        key = (frame.body.path, one.at)
        if one.to in frame.body.optimizers:
            to = self._only_optimizers(given, to, key)

        def call(function: Obj) -> None:
            if function.kind is Kind.EXTERN and function.data == SUPER:
                self._super(frame, given, to)
            elif frame.is_gathered and copies_whole(function):
                self._store.put(to, self._machine.objects.open)
            else:
                if function.kind is Kind.OPEN:
                    self._machine.by_name.call(frame.body.path, base + one.of, to)
                self.call(
                    function, given, to, (*key, frame) if function.kind in _FRAMED or is_framed(function) else key
                )

        self._store.watch(base + one.of, call)

    def _only_optimizers(self, given: Arguments, to: int, key: Hashable) -> int:
        """A cell of which ``to`` has what may be an optimizer; what is not known is one of what is ``given``."""
        made = self._store.cells()

        def hand_on(one: Obj) -> None:
            if one.kind in NO_OPTIMIZERS or one.kind is Kind.OPEN:
                self._effects.function(OPTIMIZER, given, to, key)
            else:
                self._store.put(to, one)

        self._store.watch(made, hand_on)
        return made

    def method(self, owner: Obj, name: str, positional: tuple[int, ...], to: int) -> None:
        """``to`` is what ``owner.name(...)`` gives, of an object of the tree."""
        if not isinstance(owner.data[0], Class):
            return
        found = self._store.cells()
        self._machine.attributes.of_class(owner.data[0], name, owner, found)
        key = (owner, name)

        def call(function: Obj) -> None:
            if function.kind is not Kind.METHOD:
                self.call(function, Arguments(positional), to, key)

        self._store.watch(found, call)

    def call(self, function: Obj, given: Arguments, to: int, key: Hashable) -> None:
        """``to`` is what ``function`` gives for ``given``; ``key`` is the place of the call."""
        kind, data, store = function.kind, function.data, self._store
        if kind is Kind.FUNCTION:
            self._function(data, given, to, key)
        elif kind is Kind.BOUND:
            receiver, inner = data
            first = store.holding(receiver)
            starred = tuple((place + 1, cell) for place, cell in given.starred)
            self.call(inner, given._replace(positional=(first, *given.positional), starred=starred), to, key)
        elif kind is Kind.CLASS:
            self._class(function, given, to, key)
        elif kind is Kind.PARTIAL:
            called, bound = data
            joined = Arguments(
                (*bound.positional, *given.positional),
                (*given.keywords, *bound.keywords),
                (*bound.starred, *((place + len(bound.positional), cell) for place, cell in given.starred)),
                (*bound.packed, *given.packed),
            )
            store.watch(called, lambda one: self.call(one, joined, to, key) if one is not function else None)
        elif kind is Kind.EXTERN:
            if wraps(function):
                self._machine.wraps.run(canonical(data) == WRAP, given, to, key)
            else:
                self._effects.function(data, given, to, key)
        elif kind is Kind.METHOD and data[0].kind is Kind.CLASS and data[1] == "_make":
            # A named tuple of what is given together.
            self._class(data[0], Arguments(starred=tuple((0, cell) for cell in given.positional[:1])), to, key)
        elif kind is Kind.METHOD:
            self._methods.call(data[0], data[1], given, to, key)
        elif kind is Kind.INSTANCE:
            for name in ("__call__", "forward"):
                found = store.cells()
                if isinstance(data[0], Class):
                    self._machine.attributes.of_class(data[0], name, function, found)
                store.watch(found, lambda one: self.call(one, given, to, key) if one.kind is not Kind.METHOD else None)
        elif kind is Kind.LOADED:
            self._store.put(to, function)
        elif kind is Kind.OPEN:
            self._effects.unknown(given, to, key)

    # Functions

    def _function(self, definition: Definition, given: Arguments, to: int, key: Hashable) -> None:
        body = definition.body
        frame = self._frame(definition, key)
        positional = frame.base
        names = set(body.parameters[: len(given.positional)]).union(name for name, _ in given.keywords)
        for place, cell in enumerate(given.positional):
            if place < body.positional:
                self._store.edge(cell, positional + place)
            elif body.rest:
                number = self._machine.objects.constant(place - body.positional)
                self._machine.items.put(self._rest(frame), number, cell)
        for name, cell in given.keywords:
            if name in body.parameters:
                self._store.edge(cell, positional + body.parameters.index(name))
            elif body.keywords:
                self._machine.items.put(self._packed(frame), self._machine.objects.constant(name), cell)
        for start, cell in given.starred:
            self._store.watch(cell, lambda one, start=start: self._starred(one, start, frame))  # type: ignore[misc]
        if given.packed and body.keywords:
            self._machine.items.handed_on.add(self._packed(frame))
        for cell in given.packed:
            self._store.watch(cell, lambda one: self._by_name(one, names, frame))
        for name, cell in definition.defaults.items():
            if name not in names and name in body.parameters:
                self._store.edge(cell, positional + body.parameters.index(name))
        if body.is_generator:
            made = self._machine.objects.get(Kind.CONTAINER, (frame, "yield"))
            self._store.edge(frame.yielded, self._machine.items.cell(made, ops.ANY))
            self._store.put(to, made)
        else:
            self._store.edge(frame.returned, to)

    def _frame(self, definition: Definition, key: Hashable) -> Frame:
        # A generator runs where it is read, a coroutine where it is awaited.
        is_later = definition.body.is_generator or definition.body.is_async
        finds_whole = not is_later and is_gathered(key)
        known = self._frames.setdefault((definition.frame, definition.body, finds_whole), {})
        match key:
            case (path, at, Frame() as caller) if caller.body is definition.body or len(known) >= CONTEXTS:
                key = key if key in known else (path, at)
        is_small = len(definition.body.operations) <= SMALL
        if key not in known and len(known) >= (OF_SMALL if is_small else 2 * CONTEXTS):
            key = ops.ANY
        frame = known.get(key)
        if frame is None:
            frame = known[key] = self._machine.frame(definition.body, definition.frame)
            frame.is_gathered = finds_whole
            frame.owner = definition.frame.owner if definition.frame.body.kind == "class" else None
            if frame.owner is not None:
                self._machine.by_name.result(definition.body.path, definition.body.name, frame.returned)
            body, after = definition.body, len(definition.body.parameters)
            if body.rest:
                self._store.put(frame.base + after, self._rest(frame))
                after += 1
            if body.keywords:
                self._store.put(frame.base + after, self._packed(frame))
            run_body(self._machine, frame)
        return frame

    def _rest(self, frame: Frame) -> Obj:
        return self._machine.objects.get(Kind.CONTAINER, (frame, "rest"))

    def _packed(self, frame: Frame) -> Obj:
        made = self._machine.objects.get(Kind.CONTAINER, (frame, PACKED))
        self._machine.items.dictionaries.add(made)
        return made

    def _starred(self, given: Obj, start: int, frame: Frame) -> None:
        body = frame.body
        for place in range(start, body.positional):
            self._machine.items.of(given, self._machine.objects.constant(place - start), frame.base + place)
        if body.rest:
            self._machine.items.unpack(given, self._rest(frame))

    def _by_name(self, given: Obj, names: set[str], frame: Frame) -> None:
        if given.kind is Kind.CONTAINER:
            for place, name in enumerate(frame.body.parameters):
                if name not in names:
                    self._machine.items.of(given, self._machine.objects.constant(name), frame.base + place)
        if not frame.body.keywords:
            return
        packed = self._packed(frame)
        if given.kind in (Kind.CONTAINER, Kind.ATTRIBUTES):
            self._machine.items.unpack(given, packed)
        else:
            self._store.put(self._machine.items.cell(packed, ops.ANY), self._machine.objects.open)

    def run_alone(self, function: Obj) -> None:
        """Run a function that nothing of the tree calls: ``self`` is any object of its class, all else is open."""
        definition: Definition = function.data
        owner = definition.frame.owner if definition.frame.body.kind == "class" else None
        cells = [self._store.cells() for _ in definition.body.parameters]
        for name, cell in definition.defaults.items():
            if name in definition.body.parameters:
                self._store.edge(cell, cells[definition.body.parameters.index(name)])
        for place, cell in enumerate(cells):
            if place == 0 and owner is not None:
                self._store.put(cell, self._machine.attributes.any_of(owner.data, definition.body.name))
            else:
                self._store.put(cell, self._machine.objects.unknown((definition.body, place)))
        pairs = tuple(zip(definition.body.parameters, cells, strict=True))
        packed = self._store.holding(self._machine.objects.unknown((definition.body, len(cells))))
        self._function(definition, Arguments((), pairs, (), (packed,)), self._store.cells(), "alone")

    # Classes

    def _super(self, frame: Frame, given: Arguments, to: int) -> None:
        around: Frame | None = frame
        while around is not None and around.owner is None:
            around = around.parent
        if around is None or around.owner is None or not frame.body.parameters:
            return
        cls = around.owner.data

        def as_super(receiver: Obj) -> None:
            made = self._machine.objects.get(Kind.SUPER, (receiver, cls))
            self._store.put(to, made)

        self._store.watch(given.at(1) or frame.base, as_super)

    def _class(self, function: Obj, given: Arguments, to: int, key: Hashable) -> None:
        cls: Class = function.data
        made = self._machine.objects.get(Kind.INSTANCE, (cls, key))
        self._store.put(to, made)
        found = self._store.cells()
        self._machine.attributes.of_class(cls, "__init__", made, found)

        def initialise(init: Obj) -> None:
            if init.kind in (Kind.BOUND, Kind.METHOD):
                self.call(init, given, self._store.cells(), key)

        self._store.watch(found, initialise)
        if not any("__init__" in one.body.bound for one in (cls, *cls.above)) and self._has_fields(cls):
            names = [name for one in (*reversed(cls.above), cls) for name in one.body.fields]
            fill(self._machine, made, names, given)
            self.method(made, "__post_init__", (), self._store.cells())

    def _has_fields(self, cls: Class) -> bool:
        """Whether something may have made an ``__init__``: a decorator, or a base class that is not of the tree."""
        family = (cls, *cls.above)
        outer = (one for each in family for base in each.bases for one in self._store.of(base))
        return any(one.body.is_decorated for one in family) or any(one.kind is not Kind.CLASS for one in outer)
