"""Models that reach an expression in no run: it stands in an arm of a test whose other arm alone wraps them."""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable, Mapping
from functools import cache

from fsdp_rules.ir.conditions import Arm, Setting, arms_of
from fsdp_rules.ir.operations import At, Body
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.interpreter import Interpreter

#: How many calls are followed back.
DEPTH = 5
_MODELS = frozenset({Kind.MODEL, Kind.PART})


class Excluded:
    """``sources`` are the files of the tree, which ``machine`` has interpreted."""

    def __init__(self, machine: Interpreter, sources: Mapping[str, bytes]) -> None:
        self._machine = machine
        self._sources = sources
        self._bodies: dict[str, dict[Body, None]] = {}
        for frame in machine.frames:
            if frame.body.kind == "function":
                self._bodies.setdefault(frame.body.path, {})[frame.body] = None
        self._arms = cache(self._arms_of)
        self._around = cache(self._settings)
        self._of_body = cache(self._called_under)
        self._is_written = cache(self._written)

    def all_of(self, path: str, at: At, held: set[Obj]) -> bool:
        """Whether none of the models in ``held`` is there in a run that comes to ``at``."""
        models = [one for one in held if one.kind in _MODELS]
        if not models or not self._arms(path):
            return False
        here = self._around(path, at, DEPTH)
        return bool(here) and all(one.since is not None and self._is_excluded(one, here) for one in models)

    def _is_excluded(self, model: Obj, here: frozenset[Setting]) -> bool:
        path, line = model.since.place if model.since is not None else ("", 0)
        own = (arm.settings for arm in self._arms(path) if arm.has_line(line))
        wrapped = frozenset().union(*own, self._of_callers(path, At(line, 10**6, line, 0), DEPTH))
        return any(one.excludes(other) and not self._is_written(one.text) for one in here for other in wrapped)

    def _arms_of(self, path: str) -> list[Arm]:
        try:
            return arms_of(ast.parse(self._sources[path]))
        except (KeyError, SyntaxError, ValueError, RecursionError):
            return []

    def _settings(self, path: str, at: At, depth: int) -> frozenset[Setting]:
        """The settings under which the program comes to ``at``."""
        own = (arm.settings for arm in self._arms(path) if arm.has(at))
        return frozenset().union(*own, self._of_callers(path, at, depth))

    def _of_callers(self, path: str, at: At, depth: int) -> frozenset[Setting]:
        """The settings under which the function around ``at`` is called, by all who call it."""
        around = [body for body in self._bodies.get(path, ()) if body.at[:2] <= at[:2] and at[2:] <= body.at[2:]]
        if not around or depth == 0:
            return frozenset()
        return self._of_body(max(around, key=lambda one: one.at), depth)

    def _called_under(self, body: Body, depth: int) -> frozenset[Setting]:
        """The settings that hold at every call of ``body``."""
        settings = [self._of_call(key, depth) for key in self._machine.calls.callers(body)]
        return frozenset.intersection(*settings) if settings else frozenset()

    def _of_call(self, key: Hashable, depth: int) -> frozenset[Setting]:
        """The settings of the call that ``key`` stands for, none where that is not one place."""
        match key:
            case (str() as path, At() as at, *_):
                return self._around(path, at, depth - 1)
        return frozenset()

    def _written(self, text: str) -> bool:
        """Whether the program may change the setting called ``text`` on its way."""
        last = re.split(r"[.\[]", text)[-1].strip("]'\"").encode()
        written = re.compile(rb"\.%b\s*=[^=]|\[[\"']%b[\"']\]\s*=[^=]" % (re.escape(last), re.escape(last)))
        return any(written.search(data) for data in self._sources.values())
