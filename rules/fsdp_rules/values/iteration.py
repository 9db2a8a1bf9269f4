"""The effects of functions that run over what they are given, and make containers."""

from __future__ import annotations

from collections.abc import Hashable

from fsdp_rules.ir.operations import ANY, At, Body, Text
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Arguments, Class
from fsdp_rules.values.machine import Machine

#: How many places of rows are told apart.
WIDTH = 3

_MODULES = frozenset({Kind.INSTANCE, Kind.MODEL})
_COMPUTED = frozenset({Kind.PARAMETER, Kind.GRADIENT, Kind.NUMBER, Kind.CONTAINER})


class Iteration:
    """One method for each effect; ``to`` is the cell of what the call gives, ``key`` the place of the call."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._store = machine.store
        self._objects = machine.objects

    def _made(self, key: Hashable, to: int, name: str = "") -> Obj:
        made = self._objects.get(Kind.CONTAINER, (key, name))
        self._store.put(to, made)
        return made

    def _elements(self, cell: int) -> int:
        to = self._store.cells()
        self._machine.items.elements(cell, to)
        return to

    def _range(self, given: Arguments, to: int, key: Hashable) -> None:
        elements = self._machine.items.cell(self._made(key, to), ANY)
        self._store.put(elements, self._objects.open)
        if len(given.positional) < 2:
            return
        first = given.positional[0]
        self._store.edge(first, elements)
        # What is computed is a beginning of its own, and not 0 as in a range of all ranks.
        begin = self._objects.unknown((key, "begin"))
        self._machine.items.later(first, lambda: self._store.put(elements, begin))
        self._store.watch(first, lambda one: self._store.put(elements, begin) if one.kind is Kind.OPEN else None)

    def _group(self, given: Arguments, to: int, key: Hashable) -> None:
        ranks = given.at(0, "ranks")
        self._store.put(to, self._objects.get(Kind.GROUP, key, () if ranks is None else (ranks,)))

    def _subgroups(self, given: Arguments, to: int, key: Hashable) -> None:
        """This rank's group and a list of all."""
        self._store.put(self._machine.items.cell(self._made(key, to), ANY), self._objects.get(Kind.GROUP, key, True))

    def _units(self, given: Arguments, to: int, key: Hashable) -> None:
        held = self._machine.items.cell(self._made(key, to), ANY)
        for cell in given.positional[:1]:
            self._store.watch(cell, lambda one: self._store.put(held, one) if one.kind is Kind.MODEL else None)

    def _same_elements(self, given: Arguments, to: int, key: Hashable) -> None:
        made = self._made(key, to)
        for cell in given.positional:
            self._store.watch(cell, lambda one: self._iterate(one, made))
            if len(given.positional) > 1:
                self._store.edge(cell, self._machine.items.cell(made, ANY))
        for _, cell in given.starred:
            self._store.watch(cell, lambda one: self._iterate(one, made))

    def _modules(self, given: Arguments, to: int, key: Hashable) -> None:
        made = self._made(key, to)
        items = self._machine.items
        items.modules.add(made)
        self._same_elements(given._replace(positional=()), to, key)
        elements = items.cell(made, ANY)
        for cell in given.positional:
            # nn.Sequential takes a dictionary for its values.
            self._store.watch(
                cell, lambda one: items.unpack(one, made) if one in items.dictionaries else self._iterate(one, made)
            )
            if len(given.positional) > 1:
                self._store.edge(cell, elements)
            # nn.Sequential(Block()) has a module itself where nn.ModuleList has a list of them.
            self._store.watch(cell, lambda one: self._store.put(elements, one) if one.kind in _MODULES else None)

    def _module_dictionary(self, given: Arguments, to: int, key: Hashable) -> None:
        self._machine.items.modules.add(self._made(key, to))
        self._dictionary(given, to, key)

    def _sorted(self, given: Arguments, to: int, key: Hashable) -> None:
        several = given._replace(positional=given.positional[-1:])
        self._by_key(several, given, key)
        self._same_elements(several, to, key)

    def _extreme(self, given: Arguments, to: int, key: Hashable) -> None:
        self._by_key(given, given, key)
        self._element(given, to, key)

    def _by_key(self, several: Arguments, given: Arguments, key: Hashable) -> None:
        """The argument ``key`` is called with each element."""
        function = given.keyword("key")
        if function is not None and several.positional:
            called = Arguments((self._elements(several.positional[0]),))
            result = self._store.cells()
            self._store.watch(function, lambda one: self._machine.calls.call(one, called, result, (key, "key")))

    def _iterate(self, one: Obj, made: Obj) -> None:
        if one.kind in (Kind.INSTANCE, Kind.PART, Kind.PARAMETER, Kind.GRADIENT):
            self._machine.items.elements(self._store.holding(one), self._machine.items.cell(made, ANY))
        elif one in self._machine.items.dictionaries:
            self._store.edge(self._machine.items.names(one), self._machine.items.cell(made, ANY))
        elif one.kind in (Kind.CONTAINER, Kind.ATTRIBUTES):
            self._machine.items.unpack(one, made)

    def _dictionary(self, given: Arguments, to: int, key: Hashable) -> None:
        made, items = self._made(key, to), self._machine.items
        items.dictionaries.add(made)
        for name, cell in given.keywords:
            items.put(made, self._objects.constant(name), cell)
        values, keys = items.cell(made, ANY), self._store.cells()

        def pair(one: Obj) -> None:
            if one.kind is Kind.CONTAINER:
                items.of(one, self._objects.constant(1), values)
                items.of(one, self._objects.constant(0), keys)

        def unpack(one: Obj) -> None:
            if one.kind is not Kind.CONTAINER or one in items.dictionaries:
                items.unpack(one, made)

        self._name_keys(made, keys)

        for cell in (*given.positional, *given.packed):
            self._store.watch(cell, unpack)
            self._store.watch(self._elements(cell), pair)

    def _keyed(self, given: Arguments, to: int, key: Hashable) -> None:
        made = self._made(key, to)
        self._machine.items.dictionaries.add(made)
        for cell in given.positional[:1]:
            self._name_keys(made, self._elements(cell))
        for cell in given.positional[1:]:
            self._store.edge(cell, self._machine.items.cell(made, ANY))

    def _name_keys(self, made: Obj, keys: int) -> None:
        names = self._machine.items.names(made)
        self._store.watch(keys, lambda one: self._store.put(names, one) if one.kind is Kind.NAME else None)

    def _field(self, given: Arguments, to: int, key: Hashable) -> None:
        """What a field has in an object that is made without it."""
        default = given.at(0, "default")
        factory = given.keyword("default_factory") or given.keyword("factory")
        if default is not None:
            self._store.edge(default, to)
        elif factory is not None:
            self._store.watch(factory, lambda one: self._machine.calls.call(one, Arguments(), to, (key, "factory")))
        else:
            self._store.put(to, self._objects.open)

    def _default_dictionary(self, given: Arguments, to: int, key: Hashable) -> None:
        self._dictionary(given._replace(positional=given.positional[1:]), to, key)
        value = self._machine.items.cell(self._made(key, to), ANY)
        for cell in given.positional[:1]:
            self._store.watch(cell, lambda one: self._machine.calls.call(one, Arguments(), value, (key, "default")))

    def _element(self, given: Arguments, to: int, key: Hashable) -> None:
        for cell in given.positional[:1]:
            self._machine.items.elements(cell, to)
        for cell in given.positional[1:]:
            self._store.edge(cell, to)

    def _chained(self, given: Arguments, to: int, key: Hashable) -> None:
        made = self._made(key, to)
        several = self._machine.items.cell(made, ANY)
        for cell in given.positional:
            inner = self._elements(cell)
            self._store.edge(inner, several)
            self._store.watch(inner, lambda one: self._iterate(one, made))
        for _, cell in given.starred:
            self._store.watch(self._elements(cell), lambda one: self._iterate(one, made))

    def _numbered(self, given: Arguments, to: int, key: Hashable) -> None:
        pair = self._objects.get(Kind.CONTAINER, (key, "pair"))
        for cell in given.positional[:1]:
            self._machine.items.elements(cell, self._machine.items.cell(pair, 1))
        self._store.put(self._machine.items.cell(self._made(key, to), ANY), pair)

    def _zipped(self, given: Arguments, to: int, key: Hashable) -> None:
        pair = self._objects.get(Kind.CONTAINER, (key, "pair"))
        for place, cell in enumerate(given.positional):
            self._machine.items.elements(cell, self._machine.items.cell(pair, place))
        made = self._made(key, to)
        for _, cell in given.starred:
            self._transposed(self._elements(cell), made, key)
        self._store.put(self._machine.items.cell(made, ANY), pair)

    def _transposed(self, rows: int, made: Obj, key: Hashable) -> None:
        """``zip(*rows)``: each element has what is at one place of all rows."""
        columns = [self._objects.get(Kind.CONTAINER, (key, place)) for place in range(WIDTH)]
        for place, column in enumerate(columns):
            self._store.put(self._machine.items.cell(made, place), column)

        def row(one: Obj) -> None:
            for place, column in enumerate(columns):
                self._machine.items.of(one, self._objects.constant(place), self._machine.items.cell(column, ANY))

        self._store.watch(rows, row)

    def _mapped(self, given: Arguments, to: int, key: Hashable) -> None:
        made = self._made(key, to)
        called = Arguments(tuple(map(self._elements, given.positional[1:])))
        result = self._machine.items.cell(made, ANY)
        for cell in given.positional[:1]:
            self._store.watch(cell, lambda one: self._machine.calls.call(one, called, result, key))

    def _filtered(self, given: Arguments, to: int, key: Hashable) -> None:
        self._mapped(given, self._store.cells(), (key, "filter"))
        made = self._made(key, to)
        for cell in given.positional[1:2]:
            self._store.edge(self._elements(cell), self._machine.items.cell(made, ANY))

    def _reduced(self, given: Arguments, to: int, key: Hashable) -> None:
        if len(given.positional) < 2:
            return
        elements = self._elements(given.positional[1])
        first = given.positional[2] if len(given.positional) > 2 else elements
        self._store.edge(first, to)
        called = Arguments((to, elements))
        self._store.watch(given.positional[0], lambda one: self._machine.calls.call(one, called, to, key))

    def _arithmetic(self, given: Arguments, to: int, key: Hashable) -> None:
        for cell in given.positional:
            self._store.watch(cell, lambda one: self._copy(one, to) if one.kind in _COMPUTED else None)

    def _copied(self, given: Arguments, to: int, key: Hashable) -> None:
        for cell in given.positional[:1]:
            self._store.watch(cell, lambda one: self._copy(one, to))

    def _copy(self, one: Obj, to: int) -> None:
        self._store.put(to, self._objects.copy_of(one))

    def _added(self, given: Arguments, to: int, key: Hashable) -> None:
        self._arithmetic(given, to, key)
        if len(given.positional) == 2:
            first, second = given.positional
            self._store.watch(first, lambda one: self._store.watch(second, lambda other: self._join(one, other, to)))

    def _join(self, first: Obj, second: Obj, to: int) -> None:
        """Two texts are one, of which as much is known as of both."""
        (begin, behind), (before, end) = _known_text(first), _known_text(second)
        if first.kind is Kind.CONSTANT and second.kind is Kind.CONSTANT and behind and before:
            self._store.put(to, self._objects.constant(behind + before))
        elif begin or end:
            self._store.put(to, self._objects.constant(Text(begin, end)))

    def _named_tuple(self, given: Arguments, to: int, key: Hashable) -> None:
        fields = given.positional[1] if len(given.positional) > 1 else given.keyword("field_names")
        names = self._texts(fields) if fields is not None else ()
        base = self._store.holding(self._objects.extern("typing.NamedTuple"))
        body = Body("", "class", "", At(0, 0, 0, 0), fields=names, is_decorated=True)
        made = self._objects.get(Kind.CLASS, key)
        made.data = Class(body, self._machine.frame(body, None), [base])
        self._store.put(to, made)

    def _texts(self, cell: int) -> tuple[str, ...]:
        """The texts in ``cell``: a list of them, or of pairs that begin with one, or words of one text."""
        found: list[str] = []
        for one in self._store.of(cell):
            if one.kind is Kind.CONSTANT and isinstance(one.data, str):
                found += one.data.replace(",", " ").split()
            place = 0
            while one.kind is Kind.CONTAINER and (held := self._texts(self._machine.items.cell(one, place))):
                found.append(held[0])
                place += 1
        return tuple(found)


def _known_text(one: Obj) -> tuple[str, str]:
    """How a text begins and ends, as far as that is known."""
    if one.kind is Kind.TEXT:
        return one.data.beginning, one.data.end
    return (one.data, one.data) if one.kind is Kind.CONSTANT and isinstance(one.data, str) else ("", "")
