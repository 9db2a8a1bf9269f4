"""Expressions of objects that their own function has made, above the line on which it wraps them."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping

from fsdp_rules.ir.operations import At, Call, Element, GetAttribute, GetItem, Narrowed
from fsdp_rules.values.abstract import ASKED, Kind, Site
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter

_PASSES = ("builtins.enumerate", "builtins.iter", "builtins.list", "builtins.next", "builtins.tuple")
#: What gives something of what it is given.
_Step = GetAttribute | GetItem | Element | Narrowed | Call
_STEPS = (GetAttribute, GetItem, Element, Narrowed, Call)


def before_wraps(machine: Interpreter, sources: Mapping[str, bytes]) -> dict[str, set[At]]:
    """The places of all that comes of an object that the function has made itself, and wraps further down alone."""
    found: dict[str, set[At]] = defaultdict(set)
    others: dict[str, set[At]] = defaultdict(set)
    loops = _Loops(sources)
    for frame in machine.frames:
        made = {one.to: one for one in frame.body.operations if isinstance(one, _STEPS)}
        for at, value in frame.body.uses if frame.body.kind == "function" else ():
            wraps = {one.since for one in machine.store.of(frame.base + value) if one.kind in ASKED}
            if wraps:
                line = _made_in(value, made, frame, machine)
                is_early = line and all(_is_below(one, at, line, frame, loops) for one in wraps)
                (found if is_early else others)[frame.body.path].add(at)
    return {path: places - others[path] for path, places in found.items()}


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
