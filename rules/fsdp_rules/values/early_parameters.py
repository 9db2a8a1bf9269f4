"""Optimizers that are built of modules which a wrap, run later, is given: they hold parameters from before."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from functools import cache

from fsdp_rules.ir.operations import At, Body, Call, GetAttribute, Operation
from fsdp_rules.ir.optimizer_calls import makings, used_alone
from fsdp_rules.project.optimizers import BUILDER
from fsdp_rules.values.abstract import Kind, Obj, Site
from fsdp_rules.values.call_order import CallOrder
from fsdp_rules.values.frames import Class, Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.object_classes import is_optimizer

_GIVES = frozenset({"parameters", "named_parameters", "children", "modules", "named_children", "named_modules"})


def early_parameters(machine: Interpreter, is_other: Callable[[Obj], bool]) -> dict[str, dict[At, tuple[str, At]]]:
    """The places of the calls that build an optimizer before a wrap, by files, each with the place of its module.

    What a function builds that says so in its name counts where that is called. ``is_other`` says that an object is
    surely no module.
    """
    modules = _Modules(machine, is_other)
    if not modules.wrapped:
        return {}
    order = CallOrder(machine, lambda frame, call: modules.wraps(frame, call))
    found: dict[str, dict[At, tuple[str, At]]] = defaultdict(dict)
    for frame in machine.frames:
        for place, one in enumerate(frame.body.operations):
            if not isinstance(one, Call) or not _builds(one, frame, machine):
                continue
            for caller, outer, before, later in order.around(frame.body, place):
                own = modules.first(one, frame, later, before) if later else None
                if own is None or (caller is not frame.body and used_alone(frame.body, one.to)):
                    continue
                if caller is not frame.body and BUILDER.fullmatch(frame.body.name):
                    found[caller.path].setdefault(outer.at, (frame.body.path, own))
                else:
                    found[frame.body.path].setdefault(one.at, (frame.body.path, own))
    return found


def _builds(call: Call, frame: Frame, machine: Interpreter) -> bool:
    """Whether ``call`` makes an optimizer."""
    held = machine.store.of(frame.base + call.of)
    return call.to in frame.body.optimizers or any(_is_optimizer(one, machine) for one in held)


def _is_optimizer(one: Obj, machine: Interpreter) -> bool:
    if one.kind is Kind.EXTERN:
        return is_optimizer(one.data)
    family = (one.data, *one.data.above) if one.kind is Kind.CLASS and isinstance(one.data, Class) else ()
    bases = (base for each in family for cell in each.bases for base in machine.store.of(cell))
    return any(base.kind is Kind.EXTERN and is_optimizer(base.data) for base in bases)


class _Modules:
    """``wrapped`` are the modules that each wrap is given."""

    def __init__(self, machine: Interpreter, is_other: Callable[[Obj], bool]) -> None:
        self._machine = machine
        self._is_other = is_other
        self.wrapped: dict[Site, set[Obj]] = {}
        for model in machine.objects.models():
            if model.since is not None:
                held = machine.store.of(machine.attributes.field(model, "(inner)"))
                self.wrapped[model.since] = {one for one in held if self._is_known(one)}
        self._calls = self._outer_calls() if self.wrapped else {}
        self._parts = cache(self._parts_of)
        self._makers = cache(_makers)

    def _outer_calls(self) -> dict[Hashable, list[int]]:
        """What each call of code outside of the tree is given, by the file and the place of the call."""
        found = dict[Hashable, list[int]]()
        for frame in self._machine.frames:
            for one in frame.body.operations:
                made = self._machine.store.of(frame.base + one.to) if isinstance(one, Call) else ()
                if isinstance(one, Call) and any(each.is_itself for each in made):
                    cells = (frame.base + value for value in (*one.args, *(value for _, value in one.keywords)))
                    found.setdefault((frame.body.path, one.at), []).extend(cells)
        return found

    def wraps(self, frame: Frame, call: Call) -> list[Site]:
        """The wraps that ``call`` makes."""
        place = (frame.body.path, call.at.line, frame.base, call.at.column)
        return [Site(*place)] if Site(*place) in self.wrapped else []

    def _is_known(self, one: Obj) -> bool:
        return one is not self._machine.objects.open and one.kind in (Kind.INSTANCE, Kind.OPEN, Kind.CONTAINER)

    def first(self, call: Call, frame: Frame, later: Set[Site], before: Set[Site]) -> At | None:
        """Where ``call`` gets something of a module that one of the wraps ``later`` is given, or a part of one.

        A wrap ``before`` the call that has made its model already is run later for another one.
        """
        places = {value: at for at, value in frame.body.uses}
        wraps = dict[int, Set[Site]]()
        for value, of, is_owner in self._read(call, frame):
            held = self._machine.store.of(frame.base + value)
            made = {part.since for one in held for part in self._parts(one)}
            done = {(site.place, site.column) for site in before & made}
            left = {site for site in wraps.get(of, later) if (site.place, site.column) not in done}
            if held and all(one.kind is Kind.MODEL and one.since in before for one in held):
                # A later wrap is given a copy of what these have in them, or has them in its module.
                left = {site for site in left if any(self._parts(each) & {*held} for each in self.wrapped[site])}
            wraps[value] = left
            inner = set().union(*(self.wrapped.get(site, set()) for site in left))
            inside = inner.union(*(self._parts(one) for one in self._given(inner))) if is_owner else inner
            if any(self._shares(one, inside) for one in held if self._is_known(one) and not self._is_other(one)):
                return places.get(value)
        return None

    def _given(self, inner: set[Obj]) -> set[Obj]:
        """What code outside of the tree was given for the modules ``inner`` that it made, which may be in them."""
        found, pending = set[Obj](), [*inner]
        while pending:
            one = pending.pop()
            cells = self._calls.get(one.data[:2], ()) if one.is_itself else ()
            new = {each for cell in cells for each in self._machine.store.of(cell) if self._is_known(each)} - found
            found |= new
            pending += new
        return found

    def _read(self, call: Call, frame: Frame) -> Iterator[tuple[int, int, bool]]:
        """The values that may be modules of which ``call`` gets the parameters, nearest first.

        Each with the value that is made of it, and with whether its own parameters are read.
        """
        makers = self._makers(frame.body)
        pending = [(value, call.to, False) for value in (*call.args, *(v for _, v in call.keywords))]
        seen = set[int]()
        while pending:
            value, made, is_owner = pending.pop(0)
            if value in seen:
                continue
            seen.add(value)
            yield value, made, is_owner
            for one, of in makers.get(value, ()):
                if isinstance(one, GetAttribute) and one.name not in _GIVES:
                    pending += [(of, value, True)] if is_owner and self._is_part(one, frame) else []
                elif isinstance(one, Call) and of == one.of:
                    methods = (each for each, _ in makers.get(of, ()) if isinstance(each, GetAttribute))
                    pending += [(each.of, value, is_owner or each.name in _GIVES) for each in methods]
                else:
                    pending.append((of, value, is_owner))

    def _is_part(self, read: GetAttribute, frame: Frame) -> bool:
        """Whether ``read`` gives a part of a module of which no more is known than that it is one and the same."""
        held, owners = (self._machine.store.of(frame.base + each) for each in (read.to, read.of))
        return all(one is self._machine.objects.open for one in held) and any(one.kind is Kind.OPEN for one in owners)

    def _shares(self, one: Obj, inner: set[Obj]) -> bool:
        return not inner.isdisjoint(self._parts(one)) or any(one in self._parts(each) for each in inner)

    def _parts_of(self, one: Obj) -> set[Obj]:
        """``one`` and all that it has in attributes and entries, and that what wraps these has."""
        found, pending = set[Obj](), [one]
        while pending:
            each = pending.pop()
            if each in found or not (self._is_known(each) or each.kind is Kind.MODEL):
                continue
            found.add(each)
            names = self._machine.attributes.names(each)
            cells = [self._machine.attributes.field(each, name) for name in names]
            if each.kind is Kind.CONTAINER or each in self._machine.items.modules:
                cells.append(self._machine.items.all(each))
            pending += [part for cell in cells for part in self._machine.store.of(cell)]
        return found


def _makers(body: Body) -> Mapping[int, list[tuple[Operation, int]]]:
    """The operations that make each value, each with a value that it makes it of."""
    found: dict[int, list[tuple[Operation, int]]] = defaultdict(list)
    for one, to, of in makings(body.operations):
        found[to].append((one, of))
    return found
