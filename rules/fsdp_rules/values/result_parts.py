"""Which attributes of its object, and which of its parameters, the results of a function are surely computed of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

from fsdp_rules.ir.operations import (
    Body,
    Call,
    Constant,
    Copy,
    Display,
    Element,
    Gathered,
    GetAttribute,
    GetItem,
    Narrowed,
    Operation,
    Rebound,
    Return,
    SetItem,
    Span,
)
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.calling import SUPER
from fsdp_rules.values.library import table
from fsdp_rules.values.tensor_reads import ASKED, PUTS

#: What a value is computed of: attributes of the object by their names, and parameters of the function by their places.
Tokens = frozenset[str | int]
NOTHING: Tokens = frozenset()
#: Attributes and methods of a tensor that give nothing with a gradient.
NO_RESULT = ASKED | {"argsort", "bernoulli", "bool", "detach_", "int", "long", "multinomial", "nonzero"}
_Kind = TypeVar("_Kind")


class Flow:
    """What the values of one function are surely computed of."""

    def __init__(
        self,
        body: Body,
        held: Callable[[Body, int], set[Obj]],
        given: Callable[[Flow, Call], Tokens | None],
        is_first: Callable[[Body, Call], bool],
    ) -> None:
        """``held`` is what a value of a body may be, ``given`` what the result of a call is computed of.

        ``is_first``: whether the first of the results of a call alone is computed of all that the callee has.
        """
        self.body = body
        self._held = held
        self._given = given
        self._is_first = is_first
        self._made: dict[int, list[tuple[int, Operation]]] = defaultdict(list)
        #: What is put into each container, with the key.
        self._elements: dict[int, list[tuple[int | None, int]]] = defaultdict(list)
        puts = {one.to: one.of for one in body.every(GetAttribute) if one.name in PUTS}
        for place, one in enumerate(body.operations):
            if (to := getattr(one, "to", None)) is not None and not isinstance(one, Rebound):
                self._made[to].append((place, one))
        self._known: dict[int, Tokens | None] = {}
        self._sure: list[Span] = []
        self._sure = [loop for loop in body.loops if self._runs_all(loop)]
        for place, one in enumerate(body.operations):
            if isinstance(one, SetItem):
                self._elements[one.of].append((one.key, one.value))
            elif isinstance(one, Call) and one.of in puts and self._is_run(place):
                self._elements[puts[one.of]] += [(one.of, value) for value in one.args]
        self._skipping = {place for loop in self._sure for place in self._skips(loop)}

    def result(self) -> Tokens:
        """What each result is computed of, but for those that no part of the object gives something to."""
        changed = True
        while changed:
            changed = False
            for value, made in self._made.items():
                found = self._computed(value, made)
                changed |= found != self.of(value)
                self._known[value] = found
        given = [one.of for one in self.body.every(Return) if not self._is_none(one.of)]
        ways: list[Tokens | None] = []
        for value in given:
            shown = [each for _, each in self._elements[value]] if self.made(value, Display) is not None else [value]
            every = [self.of(one) or NOTHING for one in shown]
            ways += [one for one in every if any(isinstance(each, str) for each in one)] or every
        return met(ways) or NOTHING

    def of(self, value: int) -> Tokens | None:
        """What ``value`` is computed of as far as that is known; None before anything is."""
        if value not in self._made:
            return frozenset({value}) if value < len(self.body.parameters) else NOTHING
        return self._known.get(value)

    def _computed(self, value: int, made: list[tuple[int, Operation]]) -> Tokens | None:
        if (name := self.part(value)) is not None:
            held = self._held(self.body, value)
            return NOTHING if any(one.kind is Kind.CONTAINER for one in held) else frozenset({name})
        ways = [self._by(one, place) for place, one in made if place not in self._skipping]
        return met(ways) if ways else NOTHING

    def _by(self, one: Operation, place: int) -> Tokens | None:
        if any(place in each for each in self.body.detached):
            return NOTHING
        match one:
            case Copy(of=of) | Narrowed(of=of) | Gathered(of=of):
                return self.of(of)
            case GetAttribute(of=of, name=name):
                return NOTHING if name in NO_RESULT or self.part(of) is not None or self.is_own(of) else self.of(of)
            case Element(of=of):
                return self.of(of)
            case GetItem(of=of, key=key):
                known = self._constant(key)
                if (call := self.made(of, Call)) is not None and known != 0 and self._is_first(self.body, call):
                    return NOTHING
                if self.made(of, Display) is None:
                    return self.of(of)
                own = [each for each in self._elements[of] if self._constant(each[0]) == known is not None]
                return met([self.of(each) for _, each in own or self._elements[of]]) or NOTHING
            case Display(to=to):
                return joined(self.of(each) for key, each in self._elements[to] if self._is_put(key))
            case Call():
                return self._given(self, one)
        return NOTHING

    def _is_put(self, key: int | None) -> bool:
        """Whether what has ``key``, or is put in by the method there, is surely in the container."""
        return key is not None and (self._constant(key) is not None or self.made(key, GetAttribute) is not None)

    def _is_run(self, place: int) -> bool:
        """Whether each run comes to the operation at ``place``."""
        arms = (arm for arms in self.body.arms for arm in arms)
        return not any(place in arm for arm in arms) and all(
            place not in each or each in self._sure for each in self.body.loops
        )

    def _constant(self, value: int | None) -> Hashable:
        made = self.made(value, Constant) if value is not None else None
        return made.value if made is not None else None

    def _is_none(self, value: int) -> bool:
        made = self.made(value, Constant)
        return made is not None and made.value is None

    def made(self, value: int, kind: type[_Kind]) -> _Kind | None:
        """The operation of one kind that makes ``value``."""
        return (
            next((one for _, one in self._made[value] if isinstance(one, kind)), None) if value in self._made else None
        )

    def is_own(self, value: int) -> bool:
        """Whether ``value`` is the object, or that as one of a class above."""
        made = self.made(value, Call)
        called = self._held(self.body, made.of) if made is not None else ()
        return value == 0 or any(one.data == SUPER for one in called)

    def part(self, value: int) -> str | None:
        """The attribute of the object that ``value`` is, or what a loop over that one gives in turn.

        Behind a dot the entry of a dictionary of parts that the attribute is.
        """
        if (got := self.made(value, GetAttribute)) is not None:
            return self._entry(got.of, got.name) if got.of else got.name if self.body.parameters else None
        element = self.made(value, Element)
        if element is not None:
            return self.part(element.of) if any(self._is_in(element, loop) for loop in self._sure) else None
        item = self.made(value, GetItem)
        if item is not None and isinstance(name := self._constant(item.key), str):
            return self._entry(item.of, name)
        pair = self.made(item.of, Element) if item is not None else None
        if item is None or pair is None or not any(self._is_in(pair, loop) for loop in self._sure):
            return None
        given = self._counted(pair.of)
        number = self._constant(item.key)
        return self.part(given[number]) if isinstance(number, int) and number in given else None

    def _entry(self, several: int, name: str) -> str | None:
        """The part called ``name`` of a dictionary of parts, which is what the object's attribute ``several`` is."""
        part = self.part(several)
        held = self._held(self.body, several) if part is not None else ()
        is_several = any(one.kind is Kind.CONTAINER for one in held)
        return f"{part}.{name}" if is_several and name not in table("container") else None

    def _counted(self, value: int) -> dict[int, int]:
        """What ``enumerate`` or ``zip`` is given, by the place in the tuples that a loop over it gives."""
        made = self.made(value, Call)
        names = {one.data for one in self._held(self.body, made.of)} if made is not None else set()
        if made is None or names not in ({"builtins.enumerate"}, {"builtins.zip"}):
            return {}
        return dict(enumerate(made.args, 1 if names == {"builtins.enumerate"} else 0))

    def _is_in(self, one: Operation, loop: Span) -> bool:
        return any(each is one for each in self.body.operations[loop.begin : loop.end])

    def _runs_all(self, loop: Span) -> bool:
        """Whether ``loop`` is one over a list of parts, and does not leave before its end."""
        leaves = (arm for arms in self.body.arms for arm in arms if arm.leaves)
        if any(loop.begin <= arm.begin and arm.end <= loop.end for arm in leaves):
            return False
        first = next((one for one in self.body.operations[loop.begin : loop.end] if isinstance(one, Element)), None)
        several = () if first is None else (first.of, *self._counted(first.of).values())
        return any(self.part(one) is not None for one in several)

    def _skips(self, loop: Span) -> Iterator[int]:
        """The operations, by their places, that say what a name is behind ``loop`` where that does not run."""
        before = {one.to for _, one in self._copies(range(loop.begin - 1, -1, -1))}
        after = [*self._copies(range(loop.end, len(self.body.operations)))]
        heads = before & {one.to for _, one in after}
        yield from (place for place, one in after if one.of in heads and one.to not in heads)

    def _copies(self, places: Iterable[int]) -> Iterator[tuple[int, Copy]]:
        """The copies at ``places``, up to the first that is another operation."""
        for place in places:
            one = self.body.operations[place]
            if not isinstance(one, Copy):
                return
            yield place, one


def joined(several: Iterable[Tokens | None]) -> Tokens | None:
    """All of ``several``, where all are known."""
    every = [*several]
    known = [one for one in every if one is not None]
    return frozenset().union(*known) if len(known) == len(every) else None


def met(several: Iterable[Tokens | None]) -> Tokens | None:
    """What those of ``several`` that are known have in common."""
    known = [one for one in several if one is not None]
    return frozenset.intersection(*known) if known else None
