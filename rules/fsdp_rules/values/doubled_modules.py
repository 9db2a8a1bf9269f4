"""Models that have one module under several names: torch loads a full state of it by the first of them alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from fsdp_rules.ir.operations import At, Body, Call, Copy, Display, GetAttribute, Narrowed, SetAttribute, SetItem
from fsdp_rules.values.abstract import Kind, Obj, Site
from fsdp_rules.values.frames import Class
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.library import table
from fsdp_rules.values.tensor_reads import PUTS, TensorReads, are_apart, is_again, is_in
from fsdp_rules.values.wrapped_modules import parts_of

_NAMING = frozenset({"add_module", "register_module"})
_NO_MODULES = ("torch.nn.Parameter", "torch.nn.init.", "torch.nn.functional.", "torch.nn.utils.")


def doubled_modules(machine: Interpreter) -> frozenset[Site]:
    """The wraps of models that may have one."""
    models = machine.objects.models()
    doubled = [*_Search(machine).doubled()] if models else []
    found: set[Site | None] = set()
    for model in models if doubled else ():
        parts = parts_of([model], machine)
        if any(modules & parts and owners <= parts for modules, owners in doubled):
            found.add(model.since)
    return frozenset(one for one in found if one is not None)


class _Uses:
    """Which operations of a body put values somewhere or copy them, by the values; each body is read once."""

    def __init__(self, body: Body) -> None:
        self.readers: dict[int, list[int]] = defaultdict(list)
        self.copies: dict[int, list[int]] = defaultdict(list)
        self.methods: dict[int, GetAttribute] = {}
        self.set_at: dict[tuple[int, str], int] = {}
        for place, one in enumerate(body.operations):
            match one:
                case Copy() | Narrowed():
                    self.copies[one.of].append(one.to)
                case GetAttribute():
                    self.methods[one.to] = one
                case SetAttribute():
                    self.readers[one.value].append(place)
                    self.set_at[one.of, one.name] = place
                case SetItem():
                    self.readers[one.value].append(place)
                case Call():
                    for value in {*one.args, *(given for _, given in one.keywords)}:
                        self.readers[value].append(place)

    def same(self, value: int) -> set[int]:
        """``value``, and what may be the same by another number."""
        found, pending = {value}, [value]
        while pending:
            more = set(self.copies.get(pending.pop(), ())) - found
            found |= more
            pending += more
        return found


class _Search:
    def __init__(self, machine: Interpreter) -> None:
        self._machine = machine
        self._reads = TensorReads(machine)
        self._inits = [body for body in self._reads.bodies if body.name == "__init__"]
        self._made: dict[tuple[str, At], set[str]] = defaultdict(set)
        for body in self._reads.bodies:
            for one in body.every(Call):
                self._made[body.path, one.at].update(self._names(body, one.of))
        self._is_module = cache(self._may_be_module)
        self._uses = cache(_Uses)
        self._placed: dict[tuple[Body, int], int] = {}

    def doubled(self) -> Iterator[tuple[set[Obj], set[Obj]]]:
        """The modules, each with the objects that surely have it: it is under two names of the same model."""
        for body in self._reads.bodies:
            given = {at: (0, set[Obj]()) for at in range(len(body.parameters))}
            given |= {one.to: (0, set()) for one in body.every(Call)}
            for place, one in enumerate(body.operations):
                owners = self._modules(body, one.of) if isinstance(one, GetAttribute) else set()
                if (
                    isinstance(one, GetAttribute)
                    and owners
                    and self._uses(body).set_at.get((one.of, one.name), -1) < place
                ):
                    given[one.to] = (1, owners)
            for value, (times, owners) in given.items():
                if (modules := self._modules(body, value)) and times + self._times(body, value) > 1:
                    yield modules, owners

    def _times(self, body: Body, value: int) -> int:
        """Under how many names one run of ``body`` puts ``value`` into modules; 2 are several."""
        if (body, value) not in self._placed:
            self._placed[body, value] = 0
            places: dict[tuple[int, str], tuple[int, int, int]] = {}
            for name in self._uses(body).same(value):
                for place, label, times in self._places(body, name):
                    times *= 1 + is_again(body, value, place)
                    if not any(are_apart(body, other, by, place, name) for other, by, _ in places.values()):
                        places.setdefault(label, (place, name, times))
            self._placed[body, value] = min(2, sum(times for *_, times in places.values()))
        return self._placed[body, value]

    def _places(self, body: Body, value: int) -> Iterator[tuple[int, tuple[int, str], int]]:
        methods = self._uses(body).methods
        for place in self._uses(body).readers.get(value, ()):
            one = body.operations[place]
            if isinstance(one, SetAttribute):
                is_name = bool(self._modules(body, value)) and bool(self._modules(body, one.of))
                yield place, (one.of, one.name), int(is_name)
            elif isinstance(one, SetItem):
                yield place, (place, ""), self._times_in(body, one.of)
            elif isinstance(one, Call):
                method = methods.get(one.of)
                if method is not None and method.name in PUTS:
                    yield place, (place, ""), self._times_in(body, method.of)
                else:
                    named = method is not None and method.name in _NAMING and bool(self._modules(body, method.of))
                    # A call may be given it in several arguments, under several numbers.
                    yield place, (place, str(value)), max(int(named), self._times_given(body, one, value))

    def _times_in(self, body: Body, container: int) -> int:
        """As above, of an element of ``container``."""
        if any(one in self._machine.items.modules for one in self._reads.held(body, container)):
            return 1
        is_own = any(isinstance(one, Display) and one.to == container for one in body.operations)
        return self._times(body, container) if is_own else 0

    def _times_given(self, body: Body, call: Call, value: int) -> int:
        names = self._names(body, call.of)
        if any(table("functions").get(name) == "modules" for name in names):
            return call.args.count(value)
        if "operator.Mult" in names:
            return 2 * self._times(body, call.to)
        classes = [one.data for one in self._reads.held(body, call.of) if one.kind is Kind.CLASS]
        found = 0
        for cls in classes:
            family = (cls, *cls.above)
            init = next((one for each in family for one in self._inits if is_in(one, each.body)), None)
            if init is not None:
                at = {place + 1 for place, given in enumerate(call.args) if given == value}
                at |= {
                    init.parameters.index(name)
                    for name, given in call.keywords
                    if given == value and name in init.parameters
                }
                found = max(found, sum(self._times(init, one) for one in at if one < len(init.parameters)))
        return found

    def _modules(self, body: Body, value: int) -> set[Obj]:
        return {one for one in self._reads.held(body, value) if self._is_module(one)}

    def _may_be_module(self, one: Obj) -> bool:
        if one.kind is Kind.INSTANCE and isinstance(one.data[0], Class):
            bases = (
                base
                for each in (one.data[0], *one.data[0].above)
                for cell in each.bases
                for base in self._machine.store.of(cell)
            )
            return any(base.kind is Kind.EXTERN and base.data.startswith("torch.nn.") for base in bases)
        made = self._made.get(one.data, ()) if one.kind is Kind.OPEN and isinstance(one.data, tuple) else ()
        return any(name.startswith("torch.nn.") and not name.startswith(_NO_MODULES) for name in made)

    def _names(self, body: Body, value: int) -> set[str]:
        return {one.data for one in self._reads.held(body, value) if one.kind is Kind.EXTERN}
