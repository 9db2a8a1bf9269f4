"""A document as a tree of nodes that know where they are, whatever its format."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from fsdp_rules.configuration.block import Plain, TextEdit


class LineSpan(NamedTuple):
    """A range of a text: lines count from 1, columns from 0 in characters."""

    line: int
    column: int
    end_line: int
    end_column: int


class Unreadable(Exception):
    """A document that its format's reader refuses. ``line`` counts from 1."""

    def __init__(self, reason: str, line: int) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True, eq=False)
class Node:
    """A value. ``start`` and ``end`` are positions in the text, in characters.

    ``value`` is that of a scalar. ``is_shared``: it has an anchor or was reached through an alias or a merge, so that
    an edit changes other places as well. ``is_flow``: a mapping or a list in braces or brackets.
    """

    start: int
    end: int
    value: Plain = None
    entries: tuple[Entry, ...] | None = None
    items: tuple[Node, ...] | None = None
    is_shared: bool = False
    is_flow: bool = False

    @property
    def is_scalar(self) -> bool:
        return self.entries is None and self.items is None

    def entry(self, name: str) -> Entry | None:
        """The entry that a reader takes for the key ``name``: the last of several."""
        return next((entry for entry in reversed(self.entries or ()) if entry.key == name), None)

    def get(self, name: str) -> Node | None:
        """The value of the key ``name``; None if there is none or this is not a mapping."""
        found = self.entry(name)
        return found.node if found else None

    def at(self, *path: str) -> Node | None:
        """The value under nested keys."""
        node: Node | None = self
        for name in path:
            node = node.get(name) if node else None
        return node

    def scalar(self, *path: str) -> Plain:
        """The scalar under nested keys; None if there is none."""
        node = self.at(*path)
        return node.value if node and node.is_scalar else None

    def scalars(self) -> Iterator[Node]:
        """Every scalar below this, each once."""
        pending, seen = [self], set[int]()
        while pending:
            node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if node.is_scalar:
                yield node
            pending += [*reversed(node.items or ()), *(entry.node for entry in reversed(node.entries or ()))]

    def mappings(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node]]:
        """This and every mapping below it, with the keys that lead there."""
        pending: list[tuple[tuple[str, ...], Node]] = [(path, self)]
        seen: set[int] = set()
        while pending:
            names, node = pending.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            if node.entries is not None:
                yield names, node
                pending += [((*names, entry.key), entry.node) for entry in reversed(node.entries)]
            pending += [(names, item) for item in reversed(node.items or ())]


@dataclass(frozen=True, eq=False)
class Entry:
    """One key of a mapping and its value. ``is_merged``: it came through a merge key (``<<``)."""

    key: str
    key_start: int
    key_end: int
    node: Node
    is_merged: bool = False


@dataclass(frozen=True)
class Text:
    """A decoded file. ``newline`` is how its lines end."""

    text: str

    @cached_property
    def _starts(self) -> list[int]:
        starts = [0]
        while (found := self.text.find("\n", starts[-1])) >= 0:
            starts.append(found + 1)
        return starts

    @property
    def newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    def line(self, position: int) -> int:
        """The line of a position, from 1."""
        return bisect_right(self._starts, position)

    def line_start(self, position: int) -> int:
        return self._starts[self.line(position) - 1]

    def line_end(self, position: int) -> int:
        """The position of the end of the line, before its line break."""
        found = self.text.find("\n", position)
        end = len(self.text) if found < 0 else found
        return end - 1 if end > position and self.text[end - 1] == "\r" else end

    def line_text(self, number: int) -> str:
        """The text of a line, from 1, without its end."""
        start = self._starts[number - 1]
        return self.text[start : self.line_end(start)]

    def span(self, start: int, end: int) -> LineSpan:
        """Lines and columns of a range."""
        return LineSpan(
            self.line(start), start - self.line_start(start), self.line(end), max(end - self.line_start(end), 0)
        )


def apply(text: str, edits: list[TextEdit]) -> str:
    """The text with the edits made, those at one place in their order. Raises :class:`ValueError` where two overlap."""
    parts: list[str] = []
    at = 0
    for edit in sorted(edits, key=lambda one: (one.start, one.end)):
        if edit.start < at:
            raise ValueError("two edits overlap")
        parts += [text[at : edit.start], edit.text]
        at = edit.end
    return "".join([*parts, text[at:]])
