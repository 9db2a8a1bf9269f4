"""What changes an object and what only reads it, as data, and which writes of it may have happened at a place."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.variables import Scope, Variables

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


def matter(writes: Iterable[Write], made: ast.expr, use: ast.expr, file: Variables) -> Iterator[Write]:
    """Those of ``writes`` that may have happened to what ``made`` makes where ``use`` reads it."""
    home = file.scope(use)
    ordered = home is file.scope(made) and not isinstance(home, ast.ClassDef) and not _is_read_later(use, file)
    ordered = ordered and not isinstance(file.parents[made], ast.arguments)
    for write in writes:
        is_elsewhere = write.anywhere or write.node not in file.parents
        if not ordered or is_elsewhere or _may_precede(write.node, made, use, home, file):
            yield write


def _is_read_later(use: ast.expr, file: Variables) -> bool:
    """Whether what ``use`` is put into here is only looked at later."""
    for around in file.around(use):
        if isinstance(around, ast.stmt):
            return False
        is_partial = isinstance(around, ast.Call) and (text_of(around.func) or "").rpartition(".")[2] == "partial"
        if is_partial or isinstance(around, ast.Dict | ast.List | ast.Set | ast.Tuple | ast.Lambda):
            return True
    return False


def _may_precede(node: ast.AST, made: ast.expr, use: ast.expr, home: Scope, file: Variables) -> bool:
    is_inner = file.scope(node) is not home
    while (scope := file.scope(node)) is not home:
        if isinstance(scope, ast.Module):
            return True
        # What an inner function does is done when that is called, below its definition.
        node = scope
    around = set(file.around(node))
    again = [one for one in file.around(use) if isinstance(one, ast.For | ast.AsyncFor | ast.While) and one in around]
    if any(loop not in file.around(made) for loop in again):
        return True
    if node in file.around(use) or _place(node) > _place(use):
        return False
    return is_inner or (_place(node) > _place(made) and not _excludes(node, made, file))


def _excludes(node: ast.AST, made: ast.AST, file: Variables) -> bool:
    """Whether ``made`` is in an arm of an ``if`` and ``node`` in the other one."""
    within = [made, *file.around(made)]
    above = {id(one): below for one, below in zip(within[1:], within, strict=False)}
    last: ast.AST = node
    for one in file.around(node):
        if id(one) in above:
            mine, other = above[id(one)], last
            return isinstance(one, ast.If) and (mine in one.body) != (other in one.body) and mine is not one.test
        last = one
    return False


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
