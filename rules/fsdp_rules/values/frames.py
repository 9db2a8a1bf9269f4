"""Scopes as they run: a body with cells for its values, once for each context."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from fsdp_rules.ir.operations import Body
from fsdp_rules.values.abstract import Obj


@dataclass(eq=False)
class Frame:
    """A body whose value ``n`` is in the cell ``base + n``; ``parent`` is the scope around, None for a module."""

    body: Body
    base: int
    parent: Frame | None
    returned: int
    yielded: int
    owner: Obj | None = None
    names: dict[str, int] = field(default_factory=dict)

    @property
    def scope(self) -> str:
        """The qualified name of the function or class around, itself where it is one; "" for a module."""
        around = self.parent.scope if self.parent is not None else ""
        name = "<lambda>" if self.body.kind == "lambda" else self.body.name
        return f"{around}.{name}".strip(".")

    @property
    def module(self) -> Frame:
        """The frame of the module."""
        frame = self
        while frame.parent is not None:
            frame = frame.parent
        return frame


class Arguments(NamedTuple):
    """The cells of what a call is given; ``starred`` have the place that ``*args`` begin at, ``packed`` are ``**``."""

    positional: tuple[int, ...] = ()
    keywords: tuple[tuple[str, int], ...] = ()
    starred: tuple[tuple[int, int], ...] = ()
    packed: tuple[int, ...] = ()

    def keyword(self, name: str) -> int | None:
        """The cell of a keyword."""
        return next((cell for given, cell in self.keywords if given == name), None)

    def at(self, place: int, name: str = "") -> int | None:
        """The cell of an argument that is given by its place or its name."""
        return self.positional[place] if place < len(self.positional) else self.keyword(name)


@dataclass(eq=False)
class Definition:
    """A function as it is defined in a frame, with the cells of its defaults."""

    body: Body
    frame: Frame
    defaults: dict[str, int]


@dataclass(eq=False)
class Class:
    """A class as it is defined in a frame; ``bases`` are the cells of its base classes."""

    body: Body
    frame: Frame
    bases: list[int]
    above: list[Class] = field(default_factory=list)
    below: list[Class] = field(default_factory=list)
    #: Who reads which attribute of an object of this class: the name, the cell, whether the object is just any, and
    #: of such a one the method that gets it.
    readers: list[tuple[str, int, bool, str]] = field(default_factory=list)
    fields: dict[str, int] = field(default_factory=dict)
    #: Who reads all attributes of an object of which no call that makes it is seen.
    whole: list[int] = field(default_factory=list)
