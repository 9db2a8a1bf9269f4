"""Expressions of objects that their own function has made, or whose ``__init__`` it is, before they are wrapped."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Set

from fsdp_rules.ir.operations import At, Body, Call, Element, GetAttribute, GetItem, Narrowed
from fsdp_rules.ir.optimizer_calls import made_of
from fsdp_rules.values.abstract import ASKED, Kind, Site
from fsdp_rules.values.call_order import CallOrder
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.model_wraps import wraps

_PASSES = ("builtins.enumerate", "builtins.iter", "builtins.list", "builtins.next", "builtins.tuple")
#: What gives something of what it is given.
_STEPS = (GetAttribute, GetItem, Element, Narrowed, Call)


def before_wraps(machine: Interpreter, values: Set[str]) -> tuple[dict[str, set[At]], dict[str, set[At]]]:
    """The places of all that comes of an object that the function has made itself, and wraps further down alone.

    Also those in an ``__init__``, and in what only it calls, of which all wraps run later; and those in other methods
    that may run before the wraps. ``values`` are the names of functions that are called as values.
    """
    found: dict[str, set[At]] = defaultdict(set)
    maybe: dict[str, set[At]] = defaultdict(set)
    others: dict[str, set[At]] = defaultdict(set)

    def made_by(frame: Frame, call: Call) -> list[Site]:
        site = Site(frame.body.path, call.at.line, frame.base, call.at.column)
        return [site] if any(wraps(one) for one in machine.store.of(frame.base + call.of)) else []

    order = CallOrder(machine, made_by)
    ways = _Ways(order)
    for frame in machine.frames:
        body, operations = frame.body, frame.body.operations
        makers = {one.to: place for place, one in enumerate(operations) if isinstance(one, _STEPS)}
        last = makers | {of: place for place, one in enumerate(operations) for _, of in made_of(one)}
        for at, value in body.uses if body.kind == "function" else ():
            sites = {one.since for one in machine.store.of(frame.base + value) if one.kind in ASKED}
            if sites:
                made = _made_at(value, makers, frame, machine)
                is_early = made is not None and all(ways.to(last[value], body, sites, made))
                if not is_early and frame.owner is not None and value in last:
                    found_first = ways.to(last[value], body, sites)
                    is_early = all(found_first) and _is_of_init(body, order, values)
                    if any(found_first):
                        maybe[body.path].add(at)
                (found if is_early else others)[body.path].add(at)
    return {path: places - others[path] for path, places in found.items()}, maybe


class _Ways:
    """What runs before and after an operation, on each way to it."""

    def __init__(self, order: CallOrder[Site]) -> None:
        self._order = order
        self._known: dict[tuple[Set[Site | None], Body, int, int | None], Set[bool]] = {}

    def to(self, place: int, body: Body, sites: Set[Site | None], since: int | None = None) -> Set[bool]:
        """Of all ways to ``place`` in ``body``, whether all wraps at ``sites`` run after it, and none before.

        The nearest function that runs a wrap says it: what ran before that was called made and wrapped another object.
        ``since`` has made it in ``body``.
        """
        key = (frozenset(sites), body, place, since)
        if key not in self._known:
            self._known[key] = frozenset()
            before, after = self._order.beside(body, place, since)
            left, is_first = sites - after, sites.isdisjoint(before)
            callers = self._order.callers(body) if since is None and left and is_first else frozenset()
            ways = [self.to(at, caller, left) for caller, at in callers]
            self._known[key] = frozenset().union(*ways) or frozenset({not left and is_first})
        return self._known[key]


def _is_of_init(body: Body, order: CallOrder[Site], values: Set[str], seen: Set[Body] = frozenset()) -> bool:
    """Whether ``body`` is an ``__init__``, or a private method that runs nowhere but in one."""
    if body.name == "__init__":
        return True
    callers = {caller for caller, _ in order.callers(body)} - seen
    is_private = body.name.startswith("_") and body.name not in values
    return is_private and bool(callers) and all(_is_of_init(one, order, values, seen | callers) for one in callers)


def _made_at(value: int, makers: Mapping[int, int], frame: Frame, machine: Interpreter) -> int | None:
    """The operation of ``frame`` that makes the object of a class which ``value`` comes of; None: it is another one."""
    while (place := makers.get(value)) is not None:
        match frame.body.operations[place]:
            case Call(of=of, args=args):
                called = machine.store.of(frame.base + of)
                if called and all(each.kind is Kind.CLASS for each in called):
                    return place
                is_method = all(each.kind is Kind.METHOD for each in called)
                if args and all(each.data in _PASSES for each in called):
                    value = args[0]
                elif is_method and of in makers:
                    value = of
                else:
                    return None
            case GetAttribute(of=of) | GetItem(of=of) | Element(of=of) | Narrowed(of=of):
                value = of
    return None
