"""Calls that are given a sharded model: where what they call comes from, and of which of them that is unknown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from fsdp_rules.ir.operations import At, Body, Call, Copy, Element, GetAttribute, GetItem, Narrowed, Return
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Class, Frame
from fsdp_rules.values.gives import Gives
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.library import table

_MODELS = frozenset({Kind.MODEL})
#: Operations that give what they are of, take it from there, or ask it.
_Source = Copy | Narrowed | Element | GetItem | GetAttribute | Call
_FROM = frozenset({Copy, Narrowed, Element, GetItem, GetAttribute, Call})
_TAKES, _ASKS = frozenset({Element, GetItem}), frozenset({GetAttribute, Call})
_Value = tuple[Body, int]


class Callees:
    """Looks back from the calls of an interpretation to what they call."""

    def __init__(self, machine: Interpreter) -> None:
        self._machine = machine
        self._frames: dict[Body, list[Frame]] = defaultdict(list)
        self._made: dict[Body, dict[int, list[_Source]]] = {}
        gives, store = Gives(machine), machine.store
        self._called: dict[_Value, None] = {}
        for frame in machine.frames:
            self._frames[frame.body].append(frame)
            for one in frame.body.every(Call):
                cells = (frame.base + value for value in (*one.args, *(value for _, value in one.keywords)))
                if any(gives.is_some(_MODELS, given) for cell in cells for given in store.of(cell)):
                    self._called[frame.body, one.of] = None

    def tables(self) -> set[str]:
        """The files that make what such a call takes a function from: those that import them may put some there."""
        found: set[str] = set()
        for called in self._called:
            sources = list(self._sources(called))
            if any(type(one) in _TAKES or type(one) is Call for each in sources for one in self._of(each)):
                found.update(path for each in sources for one in self._held(each) if (path := _path(one)))
        return found

    def unknown(self) -> dict[str, set[At]]:
        """By files, the places of what is called of which nothing says what it is, though something has to give it."""
        found: dict[str, set[At]] = defaultdict(set)
        for called in filter(self._is_unknown, self._called):
            body, value = called
            found[body.path].update(body.places(value))
        return found

    def _is_unknown(self, called: _Value) -> bool:
        held = self._held(called)
        if any(one.kind is Kind.EXTERN and one.data.rpartition(".")[2] in table("configured") for one in held):
            return True
        sources = [*self._sources(called, is_whole=False)]
        if any(one.kind is Kind.OPEN for one in held) and any(map(self._is_named_by_argument, sources)):
            return True
        return all(one.kind is Kind.OPEN for one in held) and any(map(self._is_open, sources))

    def _is_named_by_argument(self, each: _Value) -> bool:
        """Whether the value is found by a name that comes from an argument, whose default is one name of many."""
        return any(
            one.is_argument
            for call in self._of(each)
            if type(call) is Call and any(map(self._is_finder, self._held((each[0], call.of))))
            for given in call.args
            for source in self._sources((each[0], given), is_whole=False)
            for one in self._held(source)
        )

    def _is_open(self, each: _Value) -> bool:
        """Whether the value is an argument that nothing gives, or is taken from a container that nothing fills."""
        if any(one.is_argument for one in self._held(each)):
            return True
        for one in self._of(each):
            of = self._held((each[0], one.of))
            if type(one) in _TAKES and any(map(self._is_unfilled, of)):
                return True
            if type(one) is Call and any(map(self._finds_unknown, of)):
                return True
        return False

    def _finds_unknown(self, function: Obj) -> bool:
        """Whether ``function`` finds what it gives by a name, or in a container that nothing fills."""
        if function.kind is Kind.METHOD:
            return self._is_unfilled(function.data[0])
        return self._is_finder(function)

    def _is_finder(self, function: Obj) -> bool:
        return function.kind is Kind.EXTERN and table("functions").get(function.data) in ("read_attribute", "module")

    def _is_unfilled(self, one: Obj) -> bool:
        """Whether ``one`` is a container that a module makes and nothing puts anything in."""
        frame = one.data[0] if one.kind is Kind.CONTAINER else None
        is_global = isinstance(frame, Frame) and frame.parent is None
        return is_global and not self._machine.store.of(self._machine.items.all(one))

    def _sources(self, value: _Value, is_whole: bool = True) -> Iterator[_Value]:
        """``value`` and what it may be, or is taken from; ``is_whole``: or is an attribute or a result of."""
        found: dict[_Value, None] = {}
        pending = [value]
        while pending:
            value = pending.pop()
            if value in found:
                continue
            found[value] = None
            for one in self._of(value):
                of = value[0], one.of
                pending += () if type(one) in _ASKS and not is_whole else (of,)
                for body in {each.body for each in self._held(of) if each.body} if type(one) is Call else ():
                    pending += [(body, given.of) for given in body.operations if type(given) is Return]
        return iter(found)

    def _of(self, value: _Value) -> list[_Source]:
        """What makes ``value`` of another."""
        body, number = value
        if body not in self._made:
            made = self._made[body] = defaultdict(list)
            for one in body.operations:
                if type(one) in _FROM:
                    made[one.to].append(one)  # type: ignore[union-attr, arg-type]
        return self._made[body].get(number, [])

    def _held(self, value: _Value) -> set[Obj]:
        body, number = value
        return {one for frame in self._frames[body] for one in self._inside(frame.base + number)}

    def _inside(self, cell: int) -> Iterator[Obj]:
        """What is in ``cell``, and what a partial there is of."""
        for one in self._machine.store.of(cell):
            yield from self._inside(one.data[0]) if one.kind is Kind.PARTIAL else (one,)


def _path(one: Obj) -> str:
    """The file that makes ``one``, as far as it is a container, an object or a function of the tree."""
    first = one.data[0] if one.kind in (Kind.CONTAINER, Kind.INSTANCE) else None
    body = first.body if isinstance(first, Frame | Class) else one.body
    return body.path if body is not None else ""
