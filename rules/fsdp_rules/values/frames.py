"""Scopes as they run: a body with cells for its values, once for each context."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from fsdp_rules.ir.operations import At, Body, Call
from fsdp_rules.values.abstract import Obj


@dataclass(eq=False)
class Frame:
    """A body whose value ``n`` is in the cell ``base + n``; ``parent`` is the scope around, None for a module.

    ``is_gathered``: all calls that it stands for find full parameters.
    """

    body: Body
    base: int
    parent: Frame | None
    returned: int
    yielded: int
    owner: Obj | None = None
    names: dict[str, int] = field(default_factory=dict)
    is_gathered: bool = False

    @cached_property
    def gathered_calls(self) -> frozenset[At]:
        """The calls that find full parameters."""
        calls = (
            one.at
            for place, one in enumerate(self.body.operations)
            if isinstance(one, Call) and (self.is_gathered or any(place in span for span in self.body.gathered))
        )
        return frozenset(calls)

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


def is_gathered(key: Hashable) -> bool:
    """Whether the call that ``key`` stands for, a path, a place and the frame that calls, finds full parameters."""
    match key:
        case (_, At() as at, Frame() as caller):
            return at in caller.gathered_calls
    return False


class Arguments(NamedTuple):
    """The cells of what a call is given; ``starred`` have the place that ``*args`` begin at, ``packed`` are ``**``."""

    positional: tuple[int, ...] = ()
    keywords: tuple[tuple[str, int], ...] = ()
    starred: tuple[tuple[int, int], ...] = ()
    packed: tuple[int, ...] = ()

    @classmethod
    def of(cls, base: int, call: Call) -> Arguments:
        """Those of ``call``, whose values are in the cells from ``base`` on."""
        return cls(
            tuple(base + value for place, value in enumerate(call.args) if all(place < one for one in call.starred)),
            tuple((name, base + value) for name, value in call.keywords if name is not None),
            tuple((place, base + value) for place, value in enumerate(call.args) if place in call.starred),
            tuple(base + value for name, value in call.keywords if name is None),
        )

    def keyword(self, name: str) -> int | None:
        """The cell of a keyword."""
        return next((cell for given, cell in self.keywords if given == name), None)

    def at(self, place: int, name: str = "") -> int | None:
        """The cell of an argument that is given by its place or its name."""
        return self.positional[place] if place < len(self.positional) else self.keyword(name)


@dataclass(eq=False)
class Definition:
    """A function as it is defined in a frame, with the cells of its defaults.

    ``asks`` is the cell of the class of which it says whether its argument is an object, if it does nothing else.
    """

    body: Body
    frame: Frame
    defaults: dict[str, int]
    asks: int | None = None


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
