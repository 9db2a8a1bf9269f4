"""Which code is the project's, and where a frame of it stands."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

from .chains import Chain, Lines, Position, Scope, chains_of

_LIBRARIES = ("site-packages", "dist-packages")
_STANDARD = os.path.realpath(os.__file__).rpartition(os.sep)[0]


@dataclass(eq=False)
class Line:
    """One line of one code object: how often it began, how often its chains were looked at, and how often yet."""

    chains: list[Chain]
    runs: int = 0
    looks: int = 0
    left: int = 0


@dataclass(eq=False)
class Source:
    """One file of the project, as it was when its code first ran; ``path`` is relative, with forward slashes."""

    path: str
    digest: str
    chains: Mapping[Scope, Lines]
    lines: dict[int, list[Line]] = field(default_factory=dict)


class Places:
    """The files below ``root`` that are no library's."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._own = str(Path(__file__).resolve().parents[1])
        self._names: dict[str, Source | None] = {}
        # Code objects of several files are equal if their text is, as those of all empty modules are.
        self._codes: dict[tuple[str, CodeType], dict[int, Line] | None] = {}
        self._positions: dict[tuple[CodeType, int], Position] = {}

    @property
    def sources(self) -> list[Source]:
        """The files of which code has run."""
        return [source for source in list(self._names.values()) if source is not None]

    def source(self, name: str) -> Source | None:
        """The file that code has as its ``co_filename``, None for a library's and for what is no file."""
        if name not in self._names:
            self._names[name] = self._read(name)
        return self._names[name]

    def lines(self, code: CodeType) -> dict[int, Line] | None:
        """The lines of ``code``, filled as they begin; None for code of a library."""
        key = code.co_filename, code
        if key not in self._codes:
            self._codes[key] = None if self.source(code.co_filename) is None else {}
        return self._codes[key]

    def line(self, code: CodeType, lines: dict[int, Line], number: int, looks: int) -> Line:
        """The line ``number`` of ``code``, which begins for the first time; it may be looked at so often."""
        source = self.source(code.co_filename)
        known = source.chains.get((code.co_name, code.co_firstlineno), {}) if source is not None else {}
        line = lines[number] = Line(known.get(number, []), left=looks)
        if source is not None:
            source.lines.setdefault(number, []).append(line)
        return line

    def renew(self, looks: int) -> None:
        """Allow so many more looks at every line."""
        for lines in list(self._codes.values()):
            for line in (lines or {}).values():
                line.left = looks

    def where(self, depth: int) -> tuple[str, Position] | None:
        """Path and position of the innermost call that the project itself makes, ``depth`` frames up or further."""
        frame: FrameType | None = sys._getframe(depth + 1)
        while frame is not None:
            source = self.source(frame.f_code.co_filename)
            if source is not None:
                return source.path, self.position(frame)
            frame = frame.f_back
        return None

    def position(self, frame: FrameType) -> Position:
        """Where ``frame`` is; before Python 3.11 the line alone, with columns of 0."""
        code, last = frame.f_code, frame.f_lasti
        found = self._positions.get((code, last))
        if found is None:
            found = self._positions[code, last] = _position(code, last, frame.f_lineno)
        return found

    def _read(self, name: str) -> Source | None:
        path = Path(os.path.realpath(name))
        if not path.is_relative_to(self._root) or path.is_relative_to(self._own):
            return None
        relative = path.relative_to(self._root)
        if any(part in _LIBRARIES for part in relative.parts) or path.is_relative_to(_STANDARD):
            return None
        try:
            data = path.read_bytes()
            chains = chains_of(_decoded(data))
        except (OSError, SyntaxError, ValueError, RecursionError):
            return None
        return Source(relative.as_posix(), hashlib.sha256(data).hexdigest(), chains)


def _decoded(data: bytes) -> str:
    encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    return data.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")


def _position(code: CodeType, last: int, line: int) -> Position:
    positions = getattr(code, "co_positions", None)
    if positions is None:
        return line, 0, line, 0
    found = list(positions())[last // 2]
    first, end, column, end_column = (0 if one is None else one for one in found)
    return first or line, column, end or line, end_column
