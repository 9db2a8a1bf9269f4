"""The abstract objects that values may be, one for each place that makes some."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from fsdp_rules.ir.operations import Body, Text


class Kind(enum.Enum):
    """What an object is."""

    MODEL = "a model in FSDP1's class"
    PART = "a module inside such a model"
    PARAMETER = "a parameter of such a model, or a tensor that shares its values"
    GRADIENT = "the gradient of such a parameter"
    NUMBER = "a tensor computed from such gradients, such as a norm"
    OPTIMIZER = "an optimizer over such parameters"
    OTHER_WRAPPER = "a model in DistributedDataParallel or DeepSpeed"
    FUNCTION = "a function defined in the tree"
    CLASS = "a class defined in the tree"
    INSTANCE = "an instance of a class defined in the tree"
    CONTAINER = "a list, tuple, dictionary, or the values of a generator"
    GROUP = "a process group"
    LOADED = "the result of torch.load, or an entry of it"
    CONSTANT = "a string or a number"
    NONE = "None"
    NAME = "a name that a module gives to one of its parameters or modules"
    TEXT = "a string that is partly known only at run time"
    MODULE = "a module of the tree"
    EXTERN = "a name outside of the tree"
    BOUND = "a function defined in the tree, bound to its first argument"
    METHOD = "a method of an object whose class is outside of the tree"
    PARTIAL = "a function with some of its arguments"
    PROPERTY = "a function that is called where its name is read"
    CLASS_METHOD = "a function that is given the class"
    ATTRIBUTES = "the dictionary of an object's attributes"
    SUPER = "an object as one of the base classes of its class"
    OPEN = "anything"

    __hash__ = object.__hash__


#: The kinds that rules ask for; facts of these are never cut.
ASKED = frozenset({Kind.MODEL, Kind.PART, Kind.PARAMETER, Kind.GRADIENT, Kind.NUMBER})
LASTING = ASKED | {Kind.OPTIMIZER, Kind.OTHER_WRAPPER}


#: The data of a tensor that has the values of a parameter.
COPY = "copy"
#: Models that stay in FSDP1's class.
KEPT = "kept"
#: What a ``**`` parameter is, beside the frame of its function.
PACKED = "packed"


class Site(NamedTuple):
    """A file and a place of it, and a number for the frame that runs it."""

    path: str
    line: int
    frame: int = 0
    column: int = 0

    @property
    def place(self) -> tuple[str, int]:
        """The file and the line."""
        return self.path, self.line


@dataclass(eq=False)
class Obj:
    """One abstract object. ``since`` is where the model that it belongs to is wrapped, if it belongs to one.

    ``data`` is what its kind needs: the definition of a function, a constant's value, the dotted name of an extern.
    """

    kind: Kind
    data: Any = None
    since: Site | None = None

    @property
    def is_itself(self) -> bool:
        """Whether nothing is known of the object but that it is the same one."""
        return self.kind is Kind.OPEN and self.data is not None

    @property
    def is_kept(self) -> bool:
        """Whether the object is a model that stays in FSDP1's class, of which no more is known."""
        return self.is_itself and self.data[0] is KEPT

    @property
    def is_argument(self) -> bool:
        """Whether the object is an argument of a function that nothing calls."""
        return self.is_itself and isinstance(self.data[0], Body) and isinstance(self.data[1], int)

    @property
    def body(self) -> Body | None:
        """What the object runs where it is a function of the tree, with its first argument or without."""
        inner = self.data[1] if self.kind is Kind.BOUND else self
        return inner.data.body if inner.kind is Kind.FUNCTION else None


class Objects:
    """All objects, each known by its kind and a key."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Obj] = {}
        self.open = Obj(Kind.OPEN)
        self.none = Obj(Kind.NONE)

    def get(self, kind: Kind, key: Hashable, data: Any = None, since: Site | None = None) -> Obj:
        """The object with this key; it is made at the first question, with ``data``, which is the key by default."""
        known = self._known.get((kind, key))
        if known is None:
            known = self._known[kind, key] = Obj(kind, key if data is None else data, since)
        return known

    def of_model(self, kind: Kind, since: Site | None) -> Obj:
        """The model, part, parameter or gradient whose wrap is at ``since``."""
        return self.get(kind, since, since=since)

    def copy_of(self, one: Obj) -> Obj:
        """``one``; of a parameter a new tensor of its values, which is a parameter to all but who asks for a change."""
        return self.get(Kind.PARAMETER, (one.since, COPY), COPY, one.since) if one.kind is Kind.PARAMETER else one

    def models(self) -> list[Obj]:
        """All models in FSDP1's class."""
        return self.of_kind(Kind.MODEL)

    def of_kind(self, kind: Kind) -> list[Obj]:
        """All objects of this kind."""
        return [one for one in self._known.values() if one.kind is kind]

    def constant(self, value: Hashable) -> Obj:
        """A text, a number or None."""
        if value is None:
            return self.none
        if isinstance(value, Text):
            return self.get(Kind.TEXT, value)
        return self.get(Kind.CONSTANT, (type(value), value), value)

    def extern(self, name: str) -> Obj:
        """A dotted name that is none of the tree's."""
        return self.get(Kind.EXTERN, name)

    def unknown(self, key: Hashable) -> Obj:
        """An object of which no more is known than that it is the same wherever ``key`` is."""
        return self.get(Kind.OPEN, key)

    def method(self, owner: Obj, name: str) -> Obj:
        """A method of ``owner``."""
        return self.get(Kind.METHOD, (owner, name))
