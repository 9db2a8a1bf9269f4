"""Looks at the project's frames where their lines begin: by ``sys.monitoring``, before 3.12 by ``sys.settrace``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from .kinds import Kinds
from .places import Line, Places

#: Looks at one line between two optimizer steps.
LOOKS = 32
_OPTIMIZED = 0x1
#: Functions that give a program the dictionary of its frame.
_GIVES_NAMES = frozenset({"locals", "vars", "dir", "eval", "exec"})


class Looks:
    """Looks until :meth:`stop`. ``failed`` is told what went wrong in here; the program never is."""

    def __init__(self, places: Places, kinds: Kinds, failed: Callable[[], None]) -> None:
        self._places, self._kinds, self._failed = places, kinds, failed
        self._source: _Monitoring | _Trace | None = None

    def start(self) -> str:
        """Begin; what prevents it, or an empty text."""
        made: _Monitoring | _Trace = _Monitoring(self) if hasattr(sys, "monitoring") else _Trace(self)
        problem = made.start()
        self._source = None if problem else made
        return problem

    def stop(self) -> None:
        """Look at nothing any more."""
        if self._source is not None:
            self._source.stop()
            self._source = None

    def renew(self) -> None:
        """An optimizer step is over: lines that had their looks get new ones."""
        if self._source is not None:
            self._places.renew(LOOKS)
            self._source.renew()

    def at(self, frame: FrameType, lines: dict[int, Line], number: int) -> bool:
        """The line ``number`` begins in ``frame``; whether it may be looked at again before the next step."""
        try:
            line = lines.get(number)
            if line is None:
                line = self._places.line(frame.f_code, lines, number, LOOKS)
            line.runs += 1
            if line.left <= 0:
                return False
            line.left -= 1
            if line.chains:
                line.looks += 1
                names, globals_ = frame.f_locals, frame.f_globals
                for chain in line.chains:
                    self._kinds.look(chain, names, globals_)
        except Exception:
            self._failed()
            return False
        return True

    def lines(self, code: CodeType) -> dict[int, Line] | None:
        """The lines of ``code``, None where it is not the project's."""
        try:
            return self._places.lines(code)
        except Exception:
            self._failed()
            return None


class _Monitoring:
    """A line costs nothing any more once it has had its looks."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._api: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._tool = -1

    def start(self) -> str:
        api = self._api
        free = next((tool for tool in (4, 3, 5, 2, 1, 0) if api.get_tool(tool) is None), None)
        if free is None:
            return "all tool ids of sys.monitoring are in use"
        self._tool = free
        api.use_tool_id(free, "fsdp-migrate")
        api.register_callback(free, api.events.PY_START, self._on_start)
        api.register_callback(free, api.events.LINE, self._on_line)
        api.set_events(free, api.events.PY_START)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            self._on_start(frame.f_code, 0)
            frame = frame.f_back
        return ""

    def stop(self) -> None:
        if self._tool >= 0:
            self._api.set_events(self._tool, 0)
            self._api.free_tool_id(self._tool)
            self._tool = -1

    def renew(self) -> None:
        self._api.restart_events()

    def _on_start(self, code: CodeType, _: int) -> object:
        if self._tool >= 0 and self._looks.lines(code) is not None:
            self._api.set_local_events(self._tool, code, self._api.events.LINE)
        return self._api.DISABLE

    def _on_line(self, code: CodeType, number: int) -> object:
        lines = self._looks.lines(code)
        if lines is None:
            return self._api.DISABLE
        frame = sys._getframe(1)
        goes_on = self._looks.at(frame, lines, number)
        if sys.version_info < (3, 13) and code.co_flags & _OPTIMIZED and _GIVES_NAMES.isdisjoint(code.co_names):
            # A copy of the names, which would keep alive what the program lets go of.
            frame.f_locals.clear()
        return None if goes_on else self._api.DISABLE


class _Trace:
    """Each line of the project costs a call of Python, each call of any function one as well."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        #: Calls of each code since the last step.
        self._calls: dict[tuple[str, CodeType], int] = {}
        self._is_on = False

    def start(self) -> str:
        if sys.gettrace() is not None:
            return "another tool (a debugger, or coverage) traces this program"
        self._is_on = True
        threading.settrace(self._on_call)
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if self._looks.lines(frame.f_code) is not None:
                frame.f_trace = self._local(frame.f_code)
            frame = frame.f_back
        sys.settrace(self._on_call)
        return ""

    def stop(self) -> None:
        self._is_on = False
        if sys.gettrace() == self._on_call:
            sys.settrace(None)
        threading.settrace(None)

    def renew(self) -> None:
        self._calls.clear()

    def _on_call(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if not self._is_on or self._looks.lines(code) is None:
            return None
        key = code.co_filename, code
        calls = self._calls[key] = self._calls.get(key, 0) + 1
        # A generator is called each time that it goes on.
        return self._local(code) if calls <= LOOKS * 4 else None

    def _local(self, code: CodeType) -> Any:
        lines = self._looks.lines(code) or {}
        at = self._looks.at

        def on_event(frame: FrameType, event: str, argument: object) -> Any:
            if not self._is_on:
                return None
            if event == "line":
                at(frame, lines, frame.f_lineno)
            return on_event

        return on_event
