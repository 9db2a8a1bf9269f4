"""What conditions are once no model is wrapped with FSDP1, from what a tree chooses by."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.project.aliases import Aliases, text_of

#: What a flag is compared with that is only tested.
SET = "set"
#: What no object but FSDP1's wrappers and parameters has; others may have a ``_handle``.
_OF_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_flat_param", "_is_flat_param", "_fsdp_flattened"})


class Atom(NamedTuple):
    """A comparison of what goes by the name ``key`` with ``value``, a constant or the name of an enum's member."""

    key: str
    value: str

    @property
    def names_fsdp(self) -> bool:
        """Whether it says by itself that it is about FSDP, in whatever file it is."""
        return "fsdp" in f"{self.key}{self.value}".lower()


@dataclass(frozen=True)
class Truths:
    """Whether each atom that a tree chooses by holds now, by file for those that do not name FSDP.

    ``versions`` are the constants that functions still return which ask whether a model is FSDP1's, by their names.
    """

    everywhere: Mapping[Atom, bool] = field(default_factory=dict)
    by_file: Mapping[tuple[str, Atom], bool] = field(default_factory=dict)
    versions: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def holds(self, atom: Atom, path: str) -> bool | None:
        """Whether ``atom`` is true in the file at ``path``; None where it may be either."""
        left = self.versions.get(atom.key)
        if left is not None:
            held = {bool(ast.literal_eval(one)) if atom.value == SET else one == atom.value for one in left}
            return held.pop() if len(held) == 1 else None
        found = self.everywhere.get(atom)
        if found is None:
            found = self.by_file.get((path, atom))
        if found is None and any(one.key == atom.key and held for one, held in self._known(path)):
            return False
        return found

    def _known(self, path: str) -> Iterable[tuple[Atom, bool]]:
        yield from self.everywhere.items()
        yield from ((atom, held) for (one, atom), held in self.by_file.items() if one == path)


@dataclass(frozen=True)
class Conditions:
    """The conditions of the file at ``path``."""

    path: str
    aliases: Aliases
    truths: Truths

    def truth(self, test: ast.expr) -> bool | None:
        """Whether ``test`` is true now; None where it may be either."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                inner = self.truth(operand)
                return None if inner is None else not inner
            case ast.BoolOp(op=op, values=values):
                settles = isinstance(op, ast.Or)
                sides = [self.truth(value) for value in values]
                if settles in sides:
                    return settles
                return None if None in sides else not settles
            case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as op], comparators=[found]):
                inner = self._is_in(left, found)
                return inner if inner is None or isinstance(op, ast.In) else not inner
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass"), args=[_, kind]):
                return False if self.kept_kinds(kind) == [] else None
            case ast.Call(func=ast.Name(id="hasattr"), args=[_, ast.Constant(value=str(name))]):
                return False if name in _OF_WRAPPERS else None
        compared = atom_of(test, self.aliases)
        if compared is None:
            return None
        atom, is_equal = compared
        held = self.truths.holds(atom, self.path)
        return held if held is None or is_equal else not held

    def kept_kinds(self, kind: ast.expr) -> list[int]:
        """The places in the classes of an ``isinstance`` that are not FSDP1's."""
        kinds = kind.elts if isinstance(kind, ast.Tuple) else _alternatives(kind)
        return [place for place, one in enumerate(kinds) if self.aliases.known(one) != FSDP]

    def kept_values(self, left: ast.expr, values: Iterable[ast.expr]) -> list[int]:
        """The places of the ``values`` that ``left`` can still have."""
        key = key_of(left)
        return [place for place, one in enumerate(values) if self._equals(key, one) is not False]

    def _is_in(self, left: ast.expr, found: ast.expr) -> bool | None:
        if not isinstance(found, ast.Tuple | ast.List | ast.Set):
            return None
        key = key_of(left)
        held = [self._equals(key, one) for one in found.elts]
        return True if True in held else None if None in held or not held else False

    def _equals(self, key: str | None, value: ast.expr) -> bool | None:
        text = value_of(value, self.aliases)
        return None if key is None or text is None else self.truths.holds(Atom(key, text), self.path)


def _alternatives(kind: ast.expr) -> list[ast.expr]:
    """The classes of ``A | B``."""
    if isinstance(kind, ast.BinOp) and isinstance(kind.op, ast.BitOr):
        return [*_alternatives(kind.left), *_alternatives(kind.right)]
    return [kind]


def atom_of(test: ast.expr, aliases: Aliases) -> tuple[Atom, bool] | None:
    """What ``test`` compares, and whether it is true where the two are equal; None where it is no such comparison."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = atom_of(operand, aliases)
            return None if inner is None else (inner[0], not inner[1])
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is() | ast.NotEq() | ast.IsNot() as op], comparators=[right]):
            key, value = key_of(left), value_of(right, aliases)
            if key is None or value is None:
                return None
            is_equal = isinstance(op, ast.Eq | ast.Is)
            # A flag may be compared with what it is.
            if value in ("True", "False"):
                return Atom(key, SET), is_equal == (value == "True")
            return Atom(key, value), is_equal
    key = key_of(test)
    return (Atom(key, SET), True) if key is not None else None


def key_of(node: ast.expr) -> str | None:
    """The last name of what a choice asks for: ``strategy`` of ``self.config.strategy`` or ``config["strategy"]``."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return name
        case ast.Call(func=ast.Attribute(attr="lower" | "value", value=value)):
            return key_of(value)
        case ast.Call(func=func):
            text = text_of(func)
            return None if text is None else f"{text.rpartition('.')[2]}()"
    text = text_of(node)
    return None if text is None else text.rpartition(".")[2]


def value_of(node: ast.expr, aliases: Aliases) -> str | None:
    """A constant as it is written, or the class and the name of a member."""
    if isinstance(node, ast.Constant):
        return repr(node.value)
    dotted = aliases.dotted(node)
    return ".".join(dotted.split(".")[-2:]) if dotted is not None and "." in dotted else None


@dataclass(frozen=True)
class Versions:
    """Functions that return constants, by whether a model is FSDP1's."""

    conditions: Conditions

    def of(self, tree: ast.Module) -> dict[str, frozenset[str]]:
        """What each of them still returns, by how it is called."""
        found: dict[str, frozenset[str]] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and self._asks(node):
                values = self._returned(node.body)
                if values is not None:
                    found[f"{node.name}()"] = frozenset(values)
        return found

    def _asks(self, node: ast.FunctionDef) -> bool:
        calls = (one for one in ast.walk(node) if isinstance(one, ast.If | ast.IfExp | ast.Return))
        tests = (one.value if isinstance(one, ast.Return) else one.test for one in calls)
        return any(test is not None and self.conditions.truth(test) is False for test in tests)

    def _returned(self, body: list[ast.stmt]) -> set[str] | None:
        """The constants that ``body`` still returns, None where it does anything else."""
        found: set[str] = set()
        for node in body:
            match node:
                case ast.Return(value=value) if value is not None:
                    held = {repr(value.value)} if isinstance(value, ast.Constant) else self._boolean(value)
                    return None if held is None else found | held
                case ast.If(test=test, body=inner, orelse=orelse):
                    holds = self.conditions.truth(test)
                    arms = [inner] if holds else [orelse] if holds is False else [inner, orelse]
                    for arm in arms:
                        more = self._returned(arm)
                        if more is None:
                            return None
                        found |= more
                    if holds and isinstance(inner[-1], ast.Return):
                        return found
                case ast.Expr(value=ast.Constant()) | ast.Raise() | ast.Import() | ast.ImportFrom() | ast.Pass():
                    continue
                case _:
                    return None
        return found

    def _boolean(self, value: ast.expr) -> set[str] | None:
        return {repr(False)} if self.conditions.truth(value) is False else None
