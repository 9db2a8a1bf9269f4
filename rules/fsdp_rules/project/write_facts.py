"""What changes an object and what only reads it, as data, and what is asked of the files of a project."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from fsdp_rules.project.variables import Variables

#: Functions, by their last names, that keep nothing of their arguments and change nothing in them.
READERS = frozenset(
    {"abs", "all", "any", "asdict", "bool", "copy", "debug", "deepcopy", "dict", "dump", "dumps", "enumerate", "error"}
    | {
        "fields",
        "filter",
        "format",
        "frozenset",
        "getattr",
        "hasattr",
        "hash",
        "id",
        "info",
        "isinstance",
        "issubclass",
    }
    | {
        "issubclass",
        "iter",
        "len",
        "list",
        "log",
        "map",
        "max",
        "min",
        "next",
        "pformat",
        "pprint",
        "print",
        "replace",
        "repr",
    }
    | {"reversed", "set", "sorted", "str", "sum", "tuple", "type", "warn", "warning", "zip"}
    | {"difference", "extend", "isdisjoint", "issubset", "issuperset", "join", "union", "update"}
)
#: Methods of containers that change nothing in them.
READING = frozenset(
    {"__contains__", "__getitem__", "__iter__", "__len__", "copy", "count", "difference", "get", "index"}
    | {"intersection", "isdisjoint", "issubset", "issuperset", "items", "keys", "symmetric_difference", "union"}
    | {"values"}
)
#: Methods of containers and of other objects that change them.
WRITING = frozenset(
    {"__delattr__", "__delitem__", "__dict__", "__iadd__", "__ior__", "__setattr__", "__setitem__", "add", "append"}
    | {"appendleft", "clear", "difference_update", "discard", "extend", "extendleft", "insert", "intersection_update"}
    | {"move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "setdefault", "sort"}
    | {"symmetric_difference_update", "update"}
)
#: Functions that change their first argument.
SETTERS = frozenset({"delattr", "setattr", "vars"})
DEPTH = 6


class Write(NamedTuple):
    """``node`` may change the object. ``field`` gets ``value`` where that is all that it does.

    ``inside``: it may change what the object holds. ``anywhere``: when it runs is unknown.
    """

    node: ast.AST
    field: str = ""
    value: ast.expr | None = None
    inside: bool = False
    anywhere: bool = False


class Tree(Protocol):
    """What is asked of the other files of a project."""

    def aliases(self, path: str) -> Mapping[str, str]:
        """What each imported name of a file stands for."""

    def others(self, path: str, name: str) -> Iterable[tuple[str, Variables]]:
        """The files besides ``path`` whose text has ``name``."""

    def home(self, dotted: str) -> tuple[str, str] | None:
        """The file that defines ``dotted``, and its name there."""

    def variables(self, path: str) -> Variables | None:
        """The variables of a file."""

    def is_used_unseen(self, path: str, name: str) -> bool:
        """Whether a file that cannot be read imports ``name`` of the file ``path``."""
