"""The optimizers that may be built before each wrap, by the order of the calls in a tree."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Set

from fsdp_rules.ir.operations import At, Body, Call
from fsdp_rules.project.value_facts import Built
from fsdp_rules.values.call_order import CallOrder
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.model_wraps import wraps

#: Functions that programs begin with, by what people call them.
_ENTRY = re.compile(r"(^|_)(cli|finetune|fit|launch|main|pretrain|run|train|trainer|training|worker)(_|$)")
#: Parameters that are settings: any other may come with an optimizer that was built by then.
_SETTING = re.compile(
    r"arg|cfg|conf|rank|world|port|hp|opts$|options|path|dir|file|seed|device|flag|setting", re.IGNORECASE
)
_SCOPES = ("module", "class")


def built_before(
    machine: Interpreter, built: frozenset[Built], values: Set[str]
) -> dict[str, dict[At, frozenset[Built]]]:
    """Those of ``built`` that may be built before each call that wraps, by files.

    ``values`` are the names of functions that are called as values. What a function without callers is given is as old
    as may be, except where a program begins with it.
    """
    found: dict[str, dict[At, frozenset[Built]]] = defaultdict(dict)
    if not built:
        return found
    order = CallOrder(machine, lambda frame, call: {Built(frame.body.path, *call.at[2:])} & built)
    bodies = _Bodies(machine, order, values)
    unplaced = built - set().union(*bodies.builds.values())
    for frame in machine.frames:
        for place, one in enumerate(frame.body.operations):
            if isinstance(one, Call) and any(map(wraps, machine.store.of(frame.base + one.of))):
                found[frame.body.path][one.at] = frozenset(bodies.before(frame.body, place, built) | unplaced)
    return found


class _Bodies:
    """``builds`` are the optimizers that each builds, or what it calls."""

    def __init__(self, machine: Interpreter, order: CallOrder[Built], values: Set[str]) -> None:
        self._order = order
        self._values = values
        self._may_share = machine.may_share
        self._around = {frame.body: frame.parent.body if frame.parent is not None else None for frame in machine.frames}
        self.builds = {body: order.all_of(body) for body in self._around}
        self._loose = set[Built]().union(*(made for body, made in self.builds.items() if self._is_loose(body)))

    def before(self, body: Body, place: int, built: Set[Built]) -> Set[Built]:
        """What of ``built`` may be built before the operation ``place`` of ``body``."""
        found, pending, seen = set[Built](), [(body, place)], set[tuple[Body, int]]()
        is_known = True
        while pending:
            here = pending.pop()
            if here not in seen:
                seen.add(here)
                callers = self._callers_of(here[0])
                found |= self._order.beside(*here, since=-1)[0]
                pending += callers or ()
                is_known = is_known and callers is not None
        bodies = {each for each, _ in seen}
        # What an object builds in other methods than those that lead from its __init__ to the wrap comes after it.
        classes = {self._around[each] for each in bodies if each.name == "__init__" and self._is_method(each)}
        own = (self._order.own(each) for each, around in self._around.items() if around in classes)
        later = set[Built]().union(*own) - found
        if not is_known:
            return built - later
        others = (each for each in self.builds.keys() - bodies if each.kind in _SCOPES)
        own = (self.builds[each] for each in others if self._may_share(body.path, each.path))
        return found.union(self._loose - later, *own)

    def _callers_of(self, body: Body) -> Set[tuple[Body, int]] | None:
        """The calls of ``body``; None where what calls it is not known."""
        found = self._order.callers(body)
        begins = self._is_entry(body) and all(map(_SETTING.search, body.parameters))
        if body.kind in _SCOPES or begins:
            return found
        return None if not found or self._is_kept(body) else found

    def _is_loose(self, body: Body) -> bool:
        """Whether ``body`` may run where no call of it is seen."""
        if body.kind in _SCOPES or self._is_entry(body):
            return False
        is_method = body.kind == "lambda" or self._is_method(body)
        return self._is_kept(body) or (is_method and not self._order.callers(body))

    def _is_entry(self, body: Body) -> bool:
        return _ENTRY.search(body.name) is not None and not self._is_method(body)

    def _is_method(self, body: Body) -> bool:
        around = self._around[body]
        return around is not None and around.kind == "class"

    def _is_kept(self, body: Body) -> bool:
        """Whether ``body`` is called as a value, or by Python itself; ``__init__`` by the name of its class."""
        around = self._around[body]
        name = around.name if around is not None and body.name == "__init__" else body.name
        return name in self._values or (name.startswith("__") and body.name != "__init__")
