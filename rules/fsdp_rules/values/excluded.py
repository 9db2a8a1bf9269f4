"""Models that reach an expression in no run: it stands in an arm of a test whose other arm alone wraps them."""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable, Mapping
from functools import cache

from fsdp_rules.ir.conditions import Arm, Setting, arms_of
from fsdp_rules.ir.operations import At, Body, Call, Element, Free, GetAttribute, GetItem
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.frames import Frame
from fsdp_rules.values.interpreter import Interpreter

#: How many calls are followed back.
DEPTH = 5
_MODELS = frozenset({Kind.MODEL, Kind.PART})
_READS = (Free, GetAttribute, GetItem, Element, Call)


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
        here = [one for one in self._around(path, at, DEPTH) if self._holds(one, path, at, models)]
        return bool(here) and all(one.since is not None and self._is_excluded(one, here) for one in models)

    def _is_excluded(self, model: Obj, here: list[Setting]) -> bool:
        path, line = model.since.place if model.since is not None else ("", 0)
        own = (arm.settings for arm in self._arms(path) if arm.has_line(line))
        wrapped = frozenset().union(*own, self._of_callers(path, At(line, 10**6, line, 0), DEPTH))
        return any(one.excludes(other) for one in here for other in wrapped)

    def _holds(self, setting: Setting, path: str, at: At, models: list[Obj]) -> bool:
        """Whether ``setting``, which holds at ``at``, held when what is there now was wrapped, if it was.

        A function's own name may have had another value in a call before, from which it may have been handed back.
        """
        if setting.scope is None:
            return not self._is_written(setting.text)
        body = self._function(path, at)
        if setting.scope[1] == 0:
            return True
        if body is None or setting.scope != (path, body.at.line):
            return False
        frames = [frame for frame in self._machine.frames if frame.body is body]
        given = [frame.base + place for frame in frames for place in range(len(body.parameters))]
        handed = {one for cell in given for one in self._machine.store.of(cell)}
        return self._is_local(path, at, body) and handed.isdisjoint(models) and not self._is_kept(body, models, set())

    def _is_kept(self, body: Body, models: list[Obj], seen: set[Body]) -> bool:
        """Whether ``body``, or what it calls, gets one of ``models`` from what a call before may have filled."""
        seen.add(body)
        for frame in (frame for frame in self._machine.frames if frame.body is body):
            for one in body.operations:
                if not isinstance(one, _READS) or self._held(frame, one.to).isdisjoint(models):
                    continue
                if isinstance(one, Call):
                    called = [run for each in self._held(frame, one.of) if (run := each.body) is not None]
                    if any(each not in seen and self._is_kept(each, models, seen) for each in called):
                        return True
                elif isinstance(one, Free) or self._held(frame, one.of).isdisjoint(models):
                    return True
        return False

    def _held(self, frame: Frame, value: int) -> set[Obj]:
        return set(self._machine.store.of(frame.base + value))

    def _is_local(self, path: str, at: At, body: Body) -> bool:
        """Whether what stands at ``at`` is a variable of ``body``, or something of one that no caller has given."""
        line = self._sources[path].replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[at.line - 1]
        name, *more = line[at.column : at.end_column].decode("utf-8", "ignore").split(".")
        return at.line == at.end_line and name in (body.bound.difference(body.parameters) if more else body.bound)

    def _arms_of(self, path: str) -> list[Arm]:
        try:
            return arms_of(ast.parse(self._sources[path]), path)
        except (KeyError, SyntaxError, ValueError, RecursionError):
            return []

    def _settings(self, path: str, at: At, depth: int) -> frozenset[Setting]:
        """The settings under which the program comes to ``at``."""
        own = (arm.settings for arm in self._arms(path) if arm.has(at))
        return frozenset().union(*own, self._of_callers(path, at, depth))

    def _of_callers(self, path: str, at: At, depth: int) -> frozenset[Setting]:
        """The settings under which the function around ``at`` is called, by all who call it."""
        body = self._function(path, at)
        return self._of_body(body, depth) if body is not None and depth else frozenset()

    def _function(self, path: str, at: At) -> Body | None:
        """The innermost function around ``at``."""
        around = (body for body in self._bodies.get(path, ()) if body.at[:2] <= at[:2] and at[2:] <= body.at[2:])
        return max(around, key=lambda one: one.at, default=None)

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
