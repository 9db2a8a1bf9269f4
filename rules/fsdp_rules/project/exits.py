"""The ways on which a model may leave the files that are indexed."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Way(enum.Enum):
    """What another file has to do with a name for the model to get there."""

    IMPORTED = "the module that it is imported from"
    DEFINED = "a definition of a function or class of this name"
    CALLED = "a call of this name"
    READ = "an attribute of this name"
    EXTENDED = "a class that extends this name"
    NAMED = "this name"
    LOOKED_UP = "what looks names up in a module of this name"


class Exit(NamedTuple):
    """One way out; for ``Way.IMPORTED`` the name is fully dotted."""

    way: Way
    name: str
