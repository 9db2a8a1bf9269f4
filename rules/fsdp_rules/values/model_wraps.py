"""What the calls that wrap a model may be given, process groups of some ranks among them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from itertools import combinations

from fsdp_rules.fsdp1.constructor import FIELDS, PARAMETERS
from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.ir.operations import ANY, At, Body, Call, Display, Element, SetItem
from fsdp_rules.project.value_facts import NONE, SPREAD, SUBGROUP, UNKNOWN, Place
from fsdp_rules.values.abstract import KEPT, PACKED, Kind, Obj, Site
from fsdp_rules.values.frames import Arguments, Class, Frame
from fsdp_rules.values.machine import Machine

#: FSDP1's function that wraps a module where ``enable_wrap`` is on.
WRAP = "wrap"
#: What entries can be looked up in.
_OPENED = frozenset({Kind.CONTAINER, Kind.ATTRIBUTES})
#: The arguments that say over which ranks a wrap shards.
_OVER = ("process_group", "device_mesh")
_ALL_UNKNOWN = {name: frozenset({UNKNOWN}) for name in PARAMETERS}


class Wraps:
    """The arguments of each wrap, from all calls that make one there."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._store = machine.store
        #: The cell of each parameter, by the arguments of the calls.
        self._calls: dict[Site, dict[Arguments, dict[str, int]]] = defaultdict(dict)
        self._open: set[Place] = set()

    def run(self, may_be_left: bool, given: Arguments, to: int, key: Hashable) -> None:
        """A model in FSDP1's class; ``may_be_left``: or the module itself, outside of ``enable_wrap``."""
        site = Site("", 0)
        match key:
            case (str() as path, At() as at, *frames):
                base = next((one.base for one in frames if isinstance(one, Frame)), 0)
                site = Site(path, at.line, base, at.column)
        if site.place in self._machine.kept:
            self._store.put(to, self._machine.objects.unknown((KEPT, site)))
            return
        self._note(site, given, may_be_left)
        model = self._machine.objects.of_model(Kind.MODEL, site)
        module = given.at(0, "module")
        if module is not None:
            self._store.edge(module, self._machine.attributes.field(model, "(inner)"))
        if module is not None and may_be_left:
            self._store.edge(module, to)
        self._store.put(to, model)

    def _note(self, site: Site, given: Arguments, is_open: bool = False) -> None:
        """The call at ``site`` wraps; ``is_open``: with arguments that another place gives, too."""
        if is_open:
            self._open |= {site, site.place}
        if given not in self._calls[site]:
            self._calls[site][given] = {
                name: given.at(place, name) or self.spread(place, name, given) for place, name in enumerate(PARAMETERS)
            }

    def make(self, kind: str, given: Arguments, to: int, key: Hashable) -> None:
        """An object of the class ``kind``, with arguments of wraps."""
        made = self._machine.objects.get(Kind.INSTANCE, (kind, key))
        for place, name in enumerate(FIELDS[kind]):
            cell = given.at(place, name)
            if cell is None and (given.starred or given.packed):
                cell = self.spread(place, name, given)
                self._store.put(cell, self._machine.objects.none)
            if cell is not None:
                self._machine.attributes.save(made, name, cell)
        self._store.put(to, made)

    def spread(self, place: int, name: str, given: Arguments) -> int:
        """The cell of a parameter that a call may be given with others, as ``*these`` or ``**those``."""
        found = self._store.cells()
        for several, key in _spread(place, name, given):
            constant = self._machine.objects.constant(key)
            self._store.watch(several, lambda one, constant=constant: self._machine.items.of(one, constant, found))  # type: ignore[misc]
        return found

    def hand_on(self, frame: Frame) -> None:
        """Note the calls of ``frame`` that are given FSDP1's class, with arguments for it."""
        for one in frame.body.every(Call):
            if one.keywords and self._may_wrap(frame, one):
                keywords = tuple((name, frame.base + value) for name, value in one.keywords if name is not None)
                packed = tuple(frame.base + value for name, value in one.keywords if name is None)
                self._note(Site(frame.body.path, one.at.line, 0, one.at.column), Arguments((), keywords, (), packed))

    def _may_wrap(self, frame: Frame, call: Call) -> bool:
        cells = [frame.base + value for value in (*call.args, *(value for _, value in call.keywords))]
        held = (one for cell in cells for one in self._store.of(cell))
        return any(one.kind is Kind.EXTERN and canonical(one.data) == FSDP for one in held)

    def texts(self) -> dict[Place, Mapping[str, frozenset[str]]]:
        """What each argument may be at each wrap, as :class:`ValueFacts` has it."""
        joined: dict[Place, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for site, calls in self._calls.items():
            for given, cells in calls.items():
                for place, name in enumerate(PARAMETERS):
                    for field, texts in self._argument(place, name, given, cells[name]):
                        joined[site][field] |= texts
                        joined[site.place][field] |= texts
                joined[site][SPREAD] |= self._spread_texts(given)
                joined[site.place][SPREAD] |= self._spread_texts(given)
        every = {where: {name: frozenset(texts) for name, texts in each.items()} for where, each in joined.items()}
        return {**every, **dict.fromkeys(self._open, _ALL_UNKNOWN)}

    def over_several_meshes(self) -> frozenset[tuple[str, int]]:
        """The frames, with their files, that wrap several modules, and some of them over other ranks than the rest."""
        over: dict[tuple[str, int], set[tuple[int, frozenset[Obj]]]] = defaultdict(set)
        for site, calls in self._calls.items():
            for given, cells in calls.items():
                module = given.at(0, "module")
                if module is not None:
                    ranks = frozenset(one for name in _OVER for one in self._store.of(cells[name]))
                    over[site.path, site.frame].add((module, ranks))
        # One module in several calls is wrapped by one of them.
        return frozenset(
            frame
            for frame, wraps in over.items()
            if any(one[0] != other[0] and one[1] != other[1] for one, other in combinations(wraps, 2))
        )

    def _spread_texts(self, given: Arguments) -> set[str]:
        """What ``**`` adds: NONE for the parameter of a function that reads it there alone and gets none unpacked."""
        held = [(cell, one) for cell in given.packed for one in self._store.of(cell)]
        are_known = bool(held) and not given.starred and all(self._is_written_out(*each) for each in held)
        return {NONE} if are_known else {UNKNOWN}

    def _is_written_out(self, cell: int, one: Obj) -> bool:
        if one.kind is not Kind.CONTAINER or one.data[1] != PACKED or one in self._machine.items.handed_on:
            return False
        frame: Frame = one.data[0]
        body = frame.body
        number = len(body.parameters) + bool(body.rest)
        return cell == frame.base + number and sum(value == number for _, value in body.uses) == 1

    def _argument(self, place: int, name: str, given: Arguments, cell: int) -> Iterator[tuple[str, set[str]]]:
        own = self._texts(cell)
        if given.at(place, name) is None:
            sources = [(self._spread_of(several), key) for several, key in _spread(place, name, given)]
            own |= {UNKNOWN for several, _ in sources if None in several}
            # One that surely has it is enough.
            if not any(all(self._has(one, key) for one in several) for several, key in sources):
                own.add(NONE)
        yield name, own or {UNKNOWN}
        for one in self._store.of(cell):
            for field in FIELDS.get(one.data[0], ()) if one.kind is Kind.INSTANCE else ():
                yield f"{name}.{field}", self._field(one, field)

    def _spread_of(self, cell: int) -> list[Obj | None]:
        """The dictionaries, or lists, in ``cell``; None for what is not known."""
        return [one if one.kind in _OPENED else None for one in self._store.of(cell)] or [None]

    def _field(self, one: Obj, field: str) -> set[str]:
        found = self._texts(self._machine.attributes.field(one, field))
        return found or {UNKNOWN if self._machine.attributes.is_written(one, field) else NONE}

    def _has(self, one: Obj | None, key: str | int) -> bool:
        """Whether ``one`` surely has the entry ``key``."""
        if one is None:
            return False
        if one.kind is Kind.ATTRIBUTES:
            cls = one.data.data[0] if one.data.kind is Kind.INSTANCE else None
            known = (
                {name for each in (cls, *cls.above) for name in each.body.bound} if isinstance(cls, Class) else {key}
            )
            return key in known or self._machine.attributes.is_written(one.data, str(key))
        cell = self._machine.items.cell(one, key)
        return bool(self._store.of(cell)) or self._store.may_be_none(cell)

    def _texts(self, cell: int) -> set[str]:
        found = {self._text(one) for one in self._store.of(cell)}
        return found | {NONE} if self._store.may_be_none(cell) else found

    def _text(self, one: Obj) -> str:
        if one.kind is Kind.EXTERN:
            return canonical(one.data) or (one.data if one.data.startswith("torch.") else UNKNOWN)
        if one.kind is Kind.CONSTANT:
            return repr(one.data)
        if one.kind is Kind.GROUP:
            return SUBGROUP if is_part(one, self._machine) else UNKNOWN
        if one.kind is Kind.CONTAINER:
            is_display = isinstance(one.data[0], Frame) and isinstance(one.data[1], int)
            return "[]" if is_display and self._machine.items.is_empty(one) else "[...]"
        is_settings = one.kind is Kind.INSTANCE and one.data[0] in FIELDS
        return f"{one.data[0]}()" if is_settings else UNKNOWN


def wraps(function: Obj) -> bool:
    """Whether ``function`` is FSDP1's constructor, or what calls it."""
    return function.kind is Kind.EXTERN and canonical(function.data) in (FSDP, WRAP)


def is_framed(function: Obj) -> bool:
    """Whether ``function`` wraps, or makes an object with arguments of a wrap: each frame that calls it has its own."""
    return wraps(function) or (function.kind is Kind.EXTERN and canonical(function.data) in FIELDS)


def _spread(place: int, name: str, given: Arguments) -> Iterator[tuple[int, str | int]]:
    """What may give a parameter with others, and under which key."""
    yield from ((cell, place - start) for start, cell in given.starred if place >= start)
    yield from ((cell, name) for cell in given.packed)


def is_part(group: Obj, machine: Machine) -> bool:
    """Whether ``group`` is of some ranks: they are written out, left out by a comprehension, or a range from not 0.

    Ranks that are only known at run time may be all ranks.
    """
    return group.data is True or any(_are_some(one, machine) for cell in group.data for one in machine.store.of(cell))


def _are_some(ranks: Obj, machine: Machine) -> bool:
    if ranks.kind is not Kind.CONTAINER:
        return False
    frame, value = ranks.data
    if isinstance(frame, Frame) and isinstance(value, int) and not _is_all_of_another(frame.body, value):
        return True
    first = machine.store.of(machine.items.cell(ranks, ANY))
    return any(one is not machine.objects.open and one.data != 0 for one in first)


def _is_all_of_another(body: Body, display: int) -> bool:
    """Whether ``display`` is a comprehension that has each element of something as it is."""
    place = next(at for at, one in enumerate(body.operations) if isinstance(one, Display) and one.to == display)
    given = body.operations[place - 1] if place else None
    return isinstance(given, Element) and SetItem(display, None, given.to) in body.operations[place + 1 :]
