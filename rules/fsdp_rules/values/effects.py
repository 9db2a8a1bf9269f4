"""The effects that ``library.toml`` names: what a call outside of the tree gives for what it is given."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from fsdp_rules.fsdp1.constructor import FIELDS
from fsdp_rules.fsdp1.names import canonical
from fsdp_rules.ir.operations import ANY
from fsdp_rules.project.passing_on import PASSING_ON, Passed
from fsdp_rules.project.places import module_name
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Arguments
from fsdp_rules.values.held_parameters import hold, initialise
from fsdp_rules.values.iteration import Iteration
from fsdp_rules.values.library import table
from fsdp_rules.values.state_types import is_whole, note_state_type

#: How the methods end by which a class of a library loads an object from files.
_LOADS = (".from_pretrained", ".from_single_file")
_DECORATED = frozenset({Kind.FUNCTION, Kind.CLASS, Kind.PROPERTY, Kind.CLASS_METHOD, Kind.BOUND})


class Effects(Iteration):
    """One method for each effect of a function."""

    def function(self, name: str, given: Arguments, to: int, key: Hashable) -> None:
        """What the function ``name`` outside of the tree gives."""
        if (passed := PASSING_ON.get(name)) is not None:
            self._passed_on(passed, given, to)
            return
        effect = table("functions").get(name) or next(
            (effect for beginning, effect in table("beginnings").items() if name.startswith(beginning)), None
        )
        if (kind := canonical(name)) in FIELDS:
            self._machine.wraps.make(kind or "", given, to, key)
            return
        if effect is None:
            self._initialised(name, given)
            self.unknown(given, to, key)
            if name.endswith(_LOADS):
                self._machine.by_name.load(
                    self._objects.unknown(key),
                    (*given.positional, *(cell for _, cell in given.keywords), *given.packed),
                )
            return
        run: Callable[[Arguments, int, Hashable], None] = getattr(self, f"_{effect}")
        run(given, to, key)

    def _initialised(self, name: str, given: Arguments) -> None:
        """A call of a class's ``__init__`` by that class, with the object in front."""
        params = given.at(1, "params") if name.endswith(".__init__") else None
        if params is not None and given.positional:
            self._store.watch(given.positional[0], lambda one: initialise(self._machine, one, params))

    def unknown(self, given: Arguments, to: int, key: Hashable) -> None:
        """A call of something that is not known: it may give back a function that it decorates."""
        self._store.put(to, self._objects.unknown(key))
        for cell in given.positional[:1]:
            self._store.watch(cell, lambda one: self._store.put(to, one) if one.kind in _DECORATED else None)

    def _first(self, given: Arguments, to: int, key: Hashable) -> None:
        for cell in given.positional[:1]:
            self._store.edge(cell, to)
        if not given.positional:
            self._store.put(to, self._objects.open)
        for name, cell in given.keywords:
            # dataclasses.replace(x, field=value)
            for owner in given.positional[:1]:
                self._store.watch(owner, lambda one, n=name, c=cell: self._machine.attributes.save(one, n, c))  # type: ignore[misc]

    def _passed_on(self, passed: Passed, given: Arguments, to: int) -> None:
        cell = given.at(passed.position, passed.keyword)
        if cell is None:
            # A decorator with settings is called again, with what it decorates.
            self._store.put(to, self._objects.open)
        else:
            self._store.edge(cell, to)

    def _partial(self, given: Arguments, to: int, key: Hashable) -> None:
        if given.positional:
            bound = given._replace(
                positional=given.positional[1:], starred=tuple((place - 1, cell) for place, cell in given.starred)
            )
            self._store.put(to, self._objects.get(Kind.PARTIAL, (given.positional[0], bound)))

    def _read_attribute(self, given: Arguments, to: int, key: Hashable) -> None:
        owner, name = given.at(0), given.at(1, "name")
        if owner is None or name is None:
            return
        attributes = self._machine.attributes

        def read(one: Obj) -> None:
            self._store.watch(
                name,
                lambda text: (
                    attributes.load(one, text.data, to)
                    if text.kind is Kind.CONSTANT and isinstance(text.data, str)
                    else self._any(one, to, text)
                ),
            )

        self._store.watch(owner, read)
        # A name that is computed may be any.
        self._machine.items.later(name, lambda: self._store.watch(owner, lambda one: self._any(one, to)))
        for cell in given.positional[2:3]:
            self._store.edge(cell, to)

    def _any(self, owner: Obj, to: int, text: Obj | None = None) -> None:
        """``to`` is some attribute of ``owner``, whose name may be ``text``, or any other object."""
        self._machine.attributes.every(owner, to)
        if text is not None and text.kind is Kind.TEXT and owner.kind is Kind.INSTANCE:
            self._machine.attributes.methods(owner, text.data, to)
        self._store.put(to, self._objects.open)

    def _write_attribute(self, given: Arguments, to: int, key: Hashable) -> None:
        if len(given.positional) < 3:
            return
        owner, name, value = given.positional[:3]
        attributes = self._machine.attributes

        def write(one: Obj) -> None:
            self._store.watch(
                name,
                lambda text: attributes.save(one, text.data if isinstance(text.data, str) else ANY, value),
            )
            if not self._store.of(name):
                attributes.save(one, ANY, value)

        self._store.watch(owner, write)

    def _attributes(self, given: Arguments, to: int, key: Hashable) -> None:
        for cell in given.positional[:1]:
            self._store.watch(cell, lambda one: self._store.put(to, self._objects.get(Kind.ATTRIBUTES, one)))

    def _global_names(self, given: Arguments, to: int, key: Hashable) -> None:
        path = key[0] if isinstance(key, tuple) and isinstance(key[0], str) else ""
        module = self._objects.get(Kind.MODULE, (path, module_name(path)))
        self._store.put(to, self._objects.get(Kind.ATTRIBUTES, module))

    def _module(self, given: Arguments, to: int, key: Hashable) -> None:
        path = key[0] if isinstance(key, tuple) and isinstance(key[0], str) else ""

        def load(one: Obj) -> None:
            if one.kind is Kind.CONSTANT and isinstance(one.data, str):
                self._machine.modules.load(path, one.data, None, to)
            elif one.kind is Kind.TEXT:
                self._machine.modules.some(path, one.data, to)

        for cell in given.positional[:1]:
            self._store.watch(cell, load)
        self._store.put(to, self._objects.open)

    def _thread(self, given: Arguments, to: int, key: Hashable) -> None:
        self._started(given.at(1, "target"), given.at(3, "args"), given.at(4, "kwargs"), to, key)

    def _timer(self, given: Arguments, to: int, key: Hashable) -> None:
        self._started(given.at(1, "function"), given.at(2, "args"), given.at(3, "kwargs"), to, key)

    def _started(self, function: int | None, args: int | None, kwargs: int | None, to: int, key: Hashable) -> None:
        """An object that calls ``function`` with the elements of ``args`` and ``kwargs``."""
        self._store.put(to, self._objects.open)
        starred = ((0, args),) if args is not None else ()
        called = Arguments(starred=starred, packed=(kwargs,) if kwargs is not None else ())
        if function is not None:
            result = self._store.cells()
            self._store.watch(function, lambda one: self._machine.calls.call(one, called, result, key))

    def _getter(self, given: Arguments, to: int, key: Hashable) -> None:
        func = self._store.holding(self._objects.extern("builtins.getattr"))
        for cell in given.positional[:1]:
            # getattr has the owner first: it is bound behind by a cell of its own.
            self._store.put(to, self._objects.get(Kind.PARTIAL, (func, Arguments((), (("name", cell),)))))

    def _item_getter(self, given: Arguments, to: int, key: Hashable) -> None:
        self._store.put(to, self._objects.open)

    def _method_caller(self, given: Arguments, to: int, key: Hashable) -> None:
        self._store.put(to, self._objects.open)

    def _loaded(self, given: Arguments, to: int, key: Hashable) -> None:
        self._store.put(to, self._objects.get(Kind.LOADED, "torch.load"))

    def _plain_object(self, given: Arguments, to: int, key: Hashable) -> None:
        self._store.put(to, self._objects.get(Kind.INSTANCE, ("outer", key)))

    def _namespace(self, given: Arguments, to: int, key: Hashable) -> None:
        made = self._objects.get(Kind.INSTANCE, ("namespace", key))
        for name, cell in given.keywords:
            self._machine.attributes.save(made, name, cell)
        self._store.put(to, made)

    def _property(self, given: Arguments, to: int, key: Hashable) -> None:
        self._wrapped(Kind.PROPERTY, given, to)

    def _class_method(self, given: Arguments, to: int, key: Hashable) -> None:
        self._wrapped(Kind.CLASS_METHOD, given, to)

    def _wrapped(self, kind: Kind, given: Arguments, to: int) -> None:
        def wrap(one: Obj) -> None:
            if one.kind is Kind.FUNCTION:
                self._store.put(to, self._objects.get(kind, one))

        for cell in given.positional[:1]:
            self._store.watch(cell, wrap)

    def _static_method(self, given: Arguments, to: int, key: Hashable) -> None:
        for cell in given.positional[:1]:
            self._store.put(to, self._objects.get(Kind.PARTIAL, (cell, Arguments())))

    def _decorator(self, given: Arguments, to: int, key: Hashable) -> None:
        self._store.put(to, self._objects.extern("copy.copy"))

    def _reference(self, given: Arguments, to: int, key: Hashable) -> None:
        for cell in given.positional[:1]:
            constant = self._store.holding(self._objects.extern("copy.copy"))
            self._store.put(to, self._objects.get(Kind.PARTIAL, (constant, Arguments((cell,)))))

    def _optimizer(self, given: Arguments, to: int, key: Hashable) -> None:
        made = self._objects.get(Kind.OPTIMIZER, key)
        self._store.put(to, made)
        if (cell := given.at(0, "params")) is not None:
            hold(self._machine, made, key, cell)

    def _other_wrapper(self, given: Arguments, to: int, key: Hashable) -> None:
        made = self._objects.get(Kind.OTHER_WRAPPER, key)
        cell = given.at(0, "module")
        if cell is not None:
            self._store.edge(cell, self._machine.attributes.field(made, "(inner)"))
        self._store.put(to, made)

    def _other_wrapper_first(self, given: Arguments, to: int, key: Hashable) -> None:
        """Such a model, with an optimizer, a loader and a scheduler behind it."""
        made, model = self._made(key, to), given.at(1, "model")
        wrapped = Arguments(() if model is None else (model,))
        self._other_wrapper(wrapped, self._machine.items.cell(made, 0), key)
        self._store.put(self._machine.items.cell(made, ANY), self._objects.open)

    def _nothing(self, given: Arguments, to: int, key: Hashable) -> None:
        """A plain value."""

    def _whole_state(self, given: Arguments, to: int, key: Hashable) -> None:
        """The state of an optimizer with whole tensors, which are no parameters."""
        self._machine.items.dictionaries.add(self._made(key, to))

    def _optimizer_state(self, given: Arguments, to: int, key: Hashable) -> None:
        """As above, where the tree sets no other type of states, and none that is not known: that is the default."""

        def settle() -> None:
            if all(is_whole(self._store.of(cell)) for cell in self._machine.state_types):
                self._whole_state(given, to, key)
            else:
                self._store.put(to, self._objects.unknown(key))

        self._machine.items.later(self._store.cells(), settle)

    def _state_type(self, given: Arguments, to: int, key: Hashable) -> None:
        note_state_type(self._machine, given)
        self._state_settings(given, to, key)

    def _state_settings(self, given: Arguments, to: int, key: Hashable) -> None:
        self._store.put(to, self._objects.extern("torch.distributed.fsdp.StateDictSettings"))

    def _elementwise(self, given: Arguments, to: int, key: Hashable) -> None:
        for cell in given.positional:
            self._store.watch(cell, lambda one: self._copy(one, to) if one.kind is Kind.PARAMETER else None)
        self._number(given, to, key)

    def _number(self, given: Arguments, to: int, key: Hashable) -> None:
        """A tensor of what is computed of gradients, where one is given, or several in a list."""

        def compute(one: Obj) -> None:
            if one.kind in (Kind.GRADIENT, Kind.NUMBER):
                self._store.put(to, self._objects.of_model(Kind.NUMBER, one.since))
            elif one.kind is Kind.CONTAINER:
                self._store.watch(self._machine.items.all(one), element)

        def element(one: Obj) -> None:
            if one.kind is not Kind.CONTAINER:
                compute(one)

        for cell in (*given.positional, *(cell for _, cell in given.keywords)):
            self._store.watch(cell, compute)
        self._store.put(to, self._objects.open)

    def _joined(self, given: Arguments, to: int, key: Hashable) -> None:
        """A text, whose beginning and end are known beside."""

    def _compared(self, given: Arguments, to: int, key: Hashable) -> None:
        """A truth value, or a text."""
