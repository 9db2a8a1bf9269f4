"""Models of which a unit reads an input more than once that something else reads after it, or a weight in several runs.

FSDP2 adds up what a unit's reads of an input give by itself, FSDP1 one by one to what later reads have given.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache

from fsdp_rules.ir.operations import (
    Body,
    Call,
    Copy,
    Display,
    Element,
    GetAttribute,
    GetItem,
    Narrowed,
    Operation,
    SetItem,
)
from fsdp_rules.values.abstract import Kind, Obj, Site
from fsdp_rules.values.frames import Class
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.repeated_units import RepeatedUnits
from fsdp_rules.values.tensor_reads import ASKED, PUTS, TensorReads, are_apart, is_again
from fsdp_rules.values.ungraphed import ungraphed

#: The arguments that may give a wrap a policy; None is that of ``**arguments``.
_POLICIES = frozenset({"auto_wrap_policy", None})
_DATA = "torch.utils.data."
_UNKNOWN_MODULES = frozenset({Kind.METHOD, Kind.MODEL, Kind.PART})


def sharing_inputs(machine: Interpreter) -> frozenset[tuple[str, int]]:
    """The wraps of models that have gradients, and in which the order of the sum of one is not FSDP1's."""
    models = machine.objects.models()
    if not models:
        return frozenset()
    search = _Search(machine)
    sharing = {body for body in search.reads.bodies if search.shares(body, search.is_unit)}
    # What is wrapped without a policy has no other units than the models in it.
    alone = {body for body in sharing if search.shares(body, _is_model)}
    found: set[Site | None] = set()
    for model in models if sharing else ():
        inner, shared = search.reads.modules(model), sharing if search.may_have_units(model.since) else alone
        if model.since and shared and (not inner or shared & search.reached(inner)):
            found.add(model.since)
    direct = (one.since for body in sharing for one in search.called_models(body))
    repeated = RepeatedUnits(search.reads, search.is_unit)
    again = {one.since for one in models if repeated.reads_twice(one)} if repeated.are_there() else set()
    return frozenset(one.place for one in found.union(direct, again) - ungraphed(machine) if one is not None)


class _Search:
    def __init__(self, machine: Interpreter) -> None:
        self.reads = TensorReads(machine)
        self._units = set(self._named_classes())
        self._callers: dict[tuple[Body, int], list[tuple[Body, int]]] = defaultdict(list)
        for body in self.reads.bodies:
            for one in body.operations:
                for value, parameters in self.reads.arguments(body, one) if isinstance(one, Call) else ():
                    for parameter in parameters:
                        self._callers[parameter].append((body, value))
        self._made = cache(_makers)

    def _named_classes(self) -> Iterator[Body]:
        """The classes that policies may name: given to something, or tested for where a model is wrapped."""
        passed = {held for body in self.reads.bodies for value in _given(body) for held in self.reads.held(body, value)}
        functions = {one.data.body for one in passed if one.kind is Kind.FUNCTION}
        yield from (one.data.body for one in passed if one.kind is Kind.CLASS)
        for body in self.reads.bodies:
            for one in body.operations if body in functions or self._wraps(body) else ():
                if isinstance(one, Call) and len(one.args) > 1:
                    yield from (
                        held.data.body for held in self.reads.held(body, one.args[1]) if held.kind is Kind.CLASS
                    )

    def _wraps(self, body: Body) -> bool:
        calls = body.every(Call)
        return any(held.kind is Kind.MODEL for one in calls for held in self.reads.held(body, one.to))

    def reached(self, modules: list[Obj]) -> set[Body]:
        """The bodies that the forwards of ``modules`` run."""
        found: set[Body] = set()
        left = [forward for one in modules if (forward := self.reads.forward_of(one)) is not None]
        while left:
            body = left.pop()
            if body not in found:
                found.add(body)
                calls = body.every(Call)
                left += [run for call in calls for run, _ in self.reads.runs(body, call)]
        return found

    def called_models(self, body: Body) -> Iterator[Obj]:
        """The models that ``body`` calls with what it shares."""
        for place, one in enumerate(body.operations):
            if isinstance(one, Call) and self._is_shared(body, place, one, self.is_unit):
                yield from (held for held in self.reads.callees(body, one) if held.kind is Kind.MODEL)

    def shares(self, body: Body, is_unit: Callable[[Obj], bool]) -> bool:
        """Whether ``body`` calls a unit that shares an input."""
        calls = ((place, one) for place, one in enumerate(body.operations) if isinstance(one, Call))
        return any(self._is_shared(body, place, one, is_unit) for place, one in calls)

    def may_have_units(self, wrap: Site | None) -> bool:
        """Whether the call ``wrap`` may give a policy, or what it calls one that it has been given before."""
        path, place = (wrap.path, (wrap.line, wrap.column)) if wrap is not None else ("", (0, 0))
        for body in self.reads.bodies:
            for one in body.operations if body.path == path else ():
                if isinstance(one, Call) and (one.at.line, one.at.column) == place:
                    is_plain = all(held.kind is Kind.EXTERN for held in self.reads.held(body, one.of))
                    given = {name for name, _ in one.keywords}
                    return not is_plain or len(one.args) > 3 or bool(one.starred) or not given.isdisjoint(_POLICIES)
        return True

    def _is_shared(self, body: Body, place: int, call: Call, is_unit: Callable[[Obj], bool]) -> bool:
        if any(place in each for each in body.detached) or not any(map(is_unit, self.reads.callees(body, call))):
            return False
        given = self.reads.given(body, call)
        times: dict[int, list[int]] = defaultdict(list)
        for value, number in given.items():
            for source in _sources(body, value, place):
                times[source].append(number)
        return any(
            sum(each) > 1
            and (
                (source in given and is_again(body, source, place))
                or self._is_read_after(body, source, place)
                or (len(each) > 1 and sum(each) > 2)
            )
            and self._has_gradient(body, source)
            for source, each in times.items()
        )

    def is_unit(self, one: Obj) -> bool:
        """Whether ``one`` is a model, or of a class that a policy may name."""
        cls = one.data[0] if one.kind is Kind.INSTANCE else None
        return one.kind is Kind.MODEL or (isinstance(cls, Class) and cls.body in self._units)

    def _is_read_after(self, body: Body, value: int, call: int) -> bool:
        readers = self.reads.readers(body)
        places = [place for place, _ in readers.get(value, ())]
        for container in self._copied(body, _containers(body, value)):
            places += [place for place, _ in readers.get(container, ()) if not _puts(body, place)]
        return any(
            (place > call and not are_apart(body, call, value, place, value))
            or (place < call and is_again(body, value, call) and is_again(body, value, place))
            for place in places
        )

    def _copied(self, body: Body, containers: set[int]) -> set[int]:
        """``containers``, and those that have their elements."""
        return containers | {
            one.to for one in body.every(Call) if containers.intersection(one.args) and self.reads.copies(body, one)
        }

    def _has_gradient(self, body: Body, value: int) -> bool:
        """Whether a gradient may flow back into ``value``."""
        pending, seen = [(body, value)], set()
        while pending:
            one = pending.pop()
            if one not in seen:
                seen.add(one)
                before = self._before(*one)
                if before is None:
                    return True
                pending += before
        return False

    def _before(self, body: Body, value: int) -> list[tuple[Body, int]] | None:
        """What gets the gradient of ``value`` in turn; None where that is a module."""
        if value < len(body.parameters):
            return self._callers.get((body, value), [])
        made = self._made(body).get(value, [])
        if made and all(any(place in each for each in body.detached) for place, _ in made):
            return []
        calls = [one for _, one in made if isinstance(one, Call)]
        if calls and all(self._loads(body, one) for one in calls):
            return []
        if any(self._is_of_module(body, one) for one in calls):
            return None
        return [(body, each) for _, one in made for each in _made_of(one)]

    def _loads(self, body: Body, call: Call) -> bool:
        """Whether ``call`` makes what gives batches of data, which no gradient flows back into."""
        callees = self.reads.callees(body, call)
        return bool(callees) and all(one.kind is Kind.EXTERN and one.data.startswith(_DATA) for one in callees)

    def _is_of_module(self, body: Body, call: Call) -> bool:
        callees = self.reads.callees(body, call)
        return any(one.kind in _UNKNOWN_MODULES or one.is_itself or self.reads.modules(one) for one in callees)


def _is_model(one: Obj) -> bool:
    return one.kind is Kind.MODEL


def _makers(body: Body) -> dict[int, list[tuple[int, Operation]]]:
    """The operations, by their places, that make each value or put something into it."""
    found: dict[int, list[tuple[int, Operation]]] = defaultdict(list)
    for place, one in enumerate(body.operations):
        value = one.of if isinstance(one, SetItem) else getattr(one, "to", None)
        if value is not None:
            found[value].append((place, one))
    return found


def _made_of(one: Operation) -> tuple[int, ...]:
    """What gives ``one`` a gradient to pass on."""
    match one:
        case GetAttribute(name=name):
            return () if name in ASKED else (one.of,)
        case Copy() | Narrowed() | GetItem() | Element():
            return (one.of,)
        case SetItem():
            return (one.value,)
        case Call():
            return (one.of, *one.args, *(value for _, value in one.keywords))
    return ()


def _given(body: Body) -> Iterator[int]:
    """What ``body`` puts into containers and gives to calls, but not as what an object is tested to be."""
    for one in body.operations:
        if isinstance(one, SetItem):
            yield one.value
        elif isinstance(one, Call):
            yield from one.args[:1]
            yield from (value for _, value in one.keywords)


def _sources(body: Body, value: int, place: int) -> set[int]:
    """``value``, and what it may be by another number as ``place`` is reached for the first time."""
    found = {value}
    for at in range(place - 1, -1, -1):
        one = body.operations[at]
        if isinstance(one, Copy | Narrowed) and one.to in found:
            found.add(one.of)
    return found


def _containers(body: Body, value: int) -> set[int]:
    """The containers of ``body`` that ``value`` is put into."""
    owners = {one.to: one.of for one in body.every(GetAttribute) if one.name in PUTS}
    displays = {one.to for one in body.every(Display)}
    found = {one.of for one in body.every(SetItem) if one.value == value}
    found |= {owners[one.of] for one in body.every(Call) if one.of in owners and value in one.args}
    return found & displays


def _puts(body: Body, place: int) -> bool:
    one = body.operations[place]
    return isinstance(one, GetAttribute) and one.name in PUTS
