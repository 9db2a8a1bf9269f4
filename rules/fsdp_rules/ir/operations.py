"""The operations that a scope is lowered to; each value is a number, given once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar


class At(NamedTuple):
    """Where an expression stands, in the lines and bytes of :mod:`ast`."""

    line: int
    column: int
    end_line: int
    end_column: int


#: The key of any element, where which one is only known at run time.
ANY = "*"


class Text(NamedTuple):
    """A text of which some is only known at run time: how it begins and ends."""

    beginning: str
    end: str

    def may_be(self, text: str) -> bool:
        """Whether the text may be ``text``."""
        return text.startswith(self.beginning) and text.endswith(self.end)


class Copy(NamedTuple):
    """``of`` is one of what ``to`` may be."""

    to: int
    of: int


class Constant(NamedTuple):
    """A text, a number or None."""

    to: int
    value: Hashable


class Free(NamedTuple):
    """A read of a name that another scope binds, or that is imported from nowhere."""

    to: int
    name: str


class Bind(NamedTuple):
    """A binding of a name that other scopes can read; ``scope`` is "", "global" or "nonlocal"."""

    name: str
    of: int
    scope: str


class GetAttribute(NamedTuple):
    """``of.name``."""

    to: int
    of: int
    name: str


class SetAttribute(NamedTuple):
    """``of.name = value``."""

    of: int
    name: str
    value: int


class GetItem(NamedTuple):
    """``of[key]``; ``key`` is a value, None for a slice, which has ``bounds``."""

    to: int
    of: int
    key: int | None
    bounds: tuple[int, ...] = ()


class SetItem(NamedTuple):
    """``of[key] = value``."""

    of: int
    key: int | None
    value: int


class Element(NamedTuple):
    """What a loop over ``of`` gives."""

    to: int
    of: int


class Entered(NamedTuple):
    """What ``with of as to`` gives."""

    to: int
    of: int


class Display(NamedTuple):
    """A list, tuple, set or dictionary that is written out or comprehended; its elements are set by operations."""

    to: int
    is_dictionary: bool


class Unpacked(NamedTuple):
    """``*of`` in a display, or ``**of``: the elements of ``of`` are among those of ``into``."""

    into: int
    of: int


class Call(NamedTuple):
    """A call. ``starred`` are the positions in ``args`` with a star, the keyword None is ``**``."""

    to: int
    of: int
    args: tuple[int, ...]
    starred: frozenset[int]
    keywords: tuple[tuple[str | None, int], ...]
    at: At


class Rebound(NamedTuple):
    """``to``, of a call of ``func``, gets the name of the argument ``of``: a function not known may give it back."""

    to: int
    of: int
    func: int


class Gathered(NamedTuple):
    """``to`` is ``of`` as code that gathers full parameters hands it on.

    ``method`` is what gave it, "" for an argument of a call.
    """

    to: int
    of: int
    method: str


class Narrowed(NamedTuple):
    """``to`` is ``of`` where it is, or ``is_one`` is false and it is not, an object of the class ``cls``."""

    to: int
    of: int
    cls: int
    is_one: bool


class Define(NamedTuple):
    """A function, lambda or class with its ``body``; ``given`` are the defaults by parameter, or the bases.

    ``asks`` is the class of which a function says whether its argument is an object, where it does nothing else.
    """

    to: int
    body: Body
    given: tuple[tuple[str, int], ...]
    asks: int | None = None


class Import(NamedTuple):
    """``import module``, or ``from module import name``."""

    to: int
    module: str
    name: str | None


class Return(NamedTuple):
    """A returned value."""

    of: int


class Yield(NamedTuple):
    """A yielded value."""

    of: int


Operation = (
    Copy
    | Constant
    | Free
    | Bind
    | GetAttribute
    | SetAttribute
    | GetItem
    | SetItem
    | Element
    | Entered
    | Display
    | Unpacked
    | Call
    | Rebound
    | Gathered
    | Narrowed
    | Define
    | Import
    | Return
    | Yield
)


class Span(NamedTuple):
    """Operations by their places, the last excluded; ``leaves``: what follows is not run after them."""

    begin: int
    end: int
    leaves: bool = False

    def __contains__(self, place: object) -> bool:
        return isinstance(place, int) and self.begin <= place < self.end


#: One kind of operation.
Kind = TypeVar("Kind")


@dataclass(eq=False)
class Body:
    """A scope: its operations, how many values they have, and at which value each expression is.

    The first values are the parameters, in the order of ``parameters``; ``positional`` of them can be given by place,
    then come the names of ``rest`` (``*args``) and ``keywords`` (``**kwargs``). ``bound`` are the names that the scope
    binds, ``stars`` the modules of which it imports all names. ``fields`` are the annotated names of a class,
    ``optimizers`` the values of calls that surely make an optimizer. ``gathers``: it returns what gathers full
    parameters, or yields inside of that. ``loops`` are the operations that may run again, ``arms`` those of which one
    run has but one, ``detached`` those through which no gradient flows, ``gathered`` those that find full parameters,
    ``entered`` the values that ``with`` statements enter, each with the operations in its block, ``absent`` values with
    the place of what is only run where they are None, ``available`` the names that are true where an import succeeds.
    """

    path: str
    kind: str
    name: str
    at: At
    parameters: tuple[str, ...] = ()
    positional: int = 0
    rest: str = ""
    keywords: str = ""
    operations: list[Operation] = field(default_factory=list)
    size: int = 0
    uses: list[tuple[At, int]] = field(default_factory=list)
    bound: set[str] = field(default_factory=set)
    stars: list[str] = field(default_factory=list)
    fields: tuple[str, ...] = ()
    optimizers: frozenset[int] = frozenset()
    loops: list[Span] = field(default_factory=list)
    arms: list[tuple[Span, ...]] = field(default_factory=list)
    detached: list[Span] = field(default_factory=list)
    gathered: list[Span] = field(default_factory=list)
    entered: list[tuple[int, Span]] = field(default_factory=list)
    absent: list[tuple[int, At]] = field(default_factory=list)
    available: set[str] = field(default_factory=set)
    is_decorated: bool = False
    is_generator: bool = False
    is_async: bool = False
    gathers: bool = False

    def every(self, kind: type[Kind]) -> list[Kind]:
        """Its operations of one kind, in order."""
        return [one for one in self.operations if isinstance(one, kind)]

    def places(self, value: int) -> list[At]:
        """The expressions that are at ``value``."""
        return [at for at, one in self.uses if one == value]


def names_read(body: Body) -> set[str]:
    """The names of variables of other scopes, attributes and imports that ``body``, or a scope in it, reads."""
    found: set[str] = set()
    for one in body.operations:
        if isinstance(one, Free | GetAttribute | Import):
            found.add(one.name or "")
        elif isinstance(one, Define):
            found |= names_read(one.body)
    return found
