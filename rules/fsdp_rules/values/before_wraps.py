"""Expressions of objects that their own function has made, or whose ``__init__`` it is, before they are wrapped."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Set
from functools import partial

from fsdp_rules.ir.operations import At, Body, Call, Element, GetAttribute, GetItem, Narrowed
from fsdp_rules.ir.optimizer_calls import made_of
from fsdp_rules.values.abstract import ASKED, Kind, Site
from fsdp_rules.values.call_order import CallOrder
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.model_wraps import wraps

_PASSES = ("builtins.enumerate", "builtins.iter", "builtins.list", "builtins.next", "builtins.tuple")
#: What gives something of what it is given.
_Step = GetAttribute | GetItem | Element | Narrowed | Call
_STEPS = (GetAttribute, GetItem, Element, Narrowed, Call)


def before_wraps(machine: Interpreter, sources: Mapping[str, bytes]) -> dict[str, set[At]]:
    """The places of all that comes of an object that the function has made itself, and wraps further down alone.

    Also those in an ``__init__`` of which all wraps run later.
    """
    found: dict[str, set[At]] = defaultdict(set)
    others: dict[str, set[At]] = defaultdict(set)
    loops, order = _Loops(sources), CallOrder(machine, partial(_wraps, machine))
    for frame in machine.frames:
        last = {of: place for place, one in enumerate(frame.body.operations) for _, of in made_of(one)}
        made = {one.to: one for one in frame.body.operations if isinstance(one, _STEPS)}
        for at, value in frame.body.uses if frame.body.kind == "function" else ():
            sites = {one.since for one in machine.store.of(frame.base + value) if one.kind in ASKED}
            if sites:
                line = _made_in(value, made, frame, machine)
                is_early = line and all(_is_below(one, at, line, frame, loops) for one in sites)
                if frame.body.name == "__init__" and frame.owner is not None and value in last:
                    is_early = is_early or _run_later(sites, frame.body, last[value], order)
                (found if is_early else others)[frame.body.path].add(at)
    return {path: places - others[path] for path, places in found.items()}


def _wraps(machine: Interpreter, frame: Frame, call: Call) -> list[Site]:
    """The wraps that ``call`` makes."""
    site = Site(frame.body.path, call.at.line, frame.base, call.at.column)
    return [site] if any(wraps(one) for one in machine.store.of(frame.base + call.of)) else []


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


def _made_in(value: int, made: Mapping[int, _Step], frame: Frame, machine: Interpreter) -> int:
    """The line of ``frame`` that makes the object of a class which ``value`` comes of; 0 where it is another one."""
    one = made.get(value)
    while one is not None:
        if not isinstance(one, Call):
            one = made.get(one.of)
            continue
        called = machine.store.of(frame.base + one.of)
        if called and all(each.kind is Kind.CLASS for each in called):
            return one.at.line
        passes = bool(one.args) and all(each.data in _PASSES for each in called)
        method = made.get(one.of)
        if not passes and not (isinstance(method, GetAttribute) and all(each.kind is Kind.METHOD for each in called)):
            return 0
        one = made.get(one.args[0]) if passes else method
    return 0


def _is_below(wrap: Site | None, at: At, made: int, frame: Frame, loops: _Loops) -> bool:
    """Whether ``wrap`` stands in the same function below ``at``, and no loop leads back with the same object."""
    start, end = frame.body.at.line, frame.body.at.end_line
    if wrap is None or wrap.path != frame.body.path or not (start <= wrap.line <= end and wrap.line > at.end_line):
        return False
    return not any(first <= at.line and wrap.line <= last and not first < made for first, last in loops.of(wrap.path))


class _Loops:
    """The first and last lines of all loops of each file."""

    def __init__(self, sources: Mapping[str, bytes]) -> None:
        self._sources = sources
        self._known: dict[str, list[tuple[int, int]]] = {}

    def of(self, path: str) -> list[tuple[int, int]]:
        """Those of the file at ``path``."""
        if path not in self._known:
            nodes = ast.walk(ast.parse(self._sources[path]))
            loops = (one for one in nodes if isinstance(one, ast.For | ast.While))
            self._known[path] = [(one.lineno, one.end_lineno or one.lineno) for one in loops]
        return self._known[path]
