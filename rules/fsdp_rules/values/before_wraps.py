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


def before_wraps(machine: Interpreter) -> dict[str, set[At]]:
    """The places of all that comes of an object that the function has made itself, and wraps further down alone.

    Also those in an ``__init__`` of which all wraps run later.
    """
    found: dict[str, set[At]] = defaultdict(set)
    others: dict[str, set[At]] = defaultdict(set)

    def made_by(frame: Frame, call: Call) -> list[Site]:
        site = Site(frame.body.path, call.at.line, frame.base, call.at.column)
        return [site] if any(wraps(one) for one in machine.store.of(frame.base + call.of)) else []

    order = CallOrder(machine, made_by)
    for frame in machine.frames:
        body, operations = frame.body, frame.body.operations
        makers = {one.to: place for place, one in enumerate(operations) if isinstance(one, _STEPS)}
        last = makers | {of: place for place, one in enumerate(operations) for _, of in made_of(one)}
        for at, value in body.uses if body.kind == "function" else ():
            sites = {one.since for one in machine.store.of(frame.base + value) if one.kind in ASKED}
            if sites:
                made = _made_at(value, makers, frame, machine)
                is_early = made is not None and _all_later(sites, *order.beside(body, last[value], made))
                if body.name == "__init__" and frame.owner is not None and value in last:
                    is_early = is_early or _run_later(sites, body, last[value], order)
                (found if is_early else others)[body.path].add(at)
    return {path: places - others[path] for path, places in found.items()}


def _all_later(sites: Set[Site | None], before: Set[Site], after: Set[Site]) -> bool:
    return sites <= after and sites.isdisjoint(before)


def _run_later(
    sites: Set[Site | None], body: Body, place: int, order: CallOrder[Site], seen: Set[tuple[Body, int]] = frozenset()
) -> bool:
    """Whether all wraps at ``sites`` run after the operation ``place`` of ``body``, and none of them before it.

    The nearest function that runs a wrap says it: what ran before that was called made and wrapped another object.
    """
    before, after = order.beside(body, place)
    callers = order.callers(body) - seen
    left = sites - after
    if not sites.isdisjoint(before) or not (callers or not left):
        return False
    return not left or all(_run_later(left, caller, at, order, seen | callers) for caller, at in callers)


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
