"""The calls of a program that wrap models, and what is known of the models and the units that they make."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.fsdp1.names import FSDP, expand
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.wrap_given import WrapGiven
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.endings import assigned, chain_of
from fsdp_rules.project.walking import walk

#: What wraps units inside of a model, beside a policy.
WRAPS_INSIDE = re.compile(rb"\b(enable_wrap|auto_wrap)\b|(?<!def )(?<![.\w])wrap\(")
POLICY = "auto_wrap_policy"


@dataclass(frozen=True)
class Wrap:
    """A call in the file at ``path`` that wraps, and what it is assigned to."""

    path: str
    call: ast.Call
    target: ast.expr | None
    #: Whether it stands in a class that has a forward, whose attributes are parts of a model.
    in_module: bool = False
    #: Whether the call is FSDP1's constructor, and not a function that is given it.
    is_constructor: bool = False

    @property
    def is_inner(self) -> bool:
        """Whether it puts a part of a model in the place of that part."""
        if self.target is None or isinstance(self.target, ast.Name):
            return False
        return self.in_module or not (text_of(self.target) or "").startswith("self.")

    def given(self, file: File) -> WrapGiven:
        """What it is given."""
        return WrapGiven(((self.path, self.call.lineno),), file)


def wraps_of(model: cst.BaseExpression | None, file: File) -> list[Wrap]:
    """Every wrap of the program that ``model`` and its units may come from; those of all where it is not followed."""
    wraps, by_place, inner = _wraps(file.module, file)
    origins = value_of(model, file).origins if model is not None else ()
    mine = [one for place in dict.fromkeys((one[0], one[1]) for one in origins) for one in by_place.get(place, ())]
    return [*mine, *(one for one in inner if one not in mine)] if mine else wraps


def carried_in(wraps: Sequence[Wrap], file: File) -> list[Wrap]:
    """Those of ``wraps`` in ``file`` that can keep what FSDP1 keeps, empty where one may be elsewhere."""
    constructors = [one for one in wraps if one.path == file.path and one.is_constructor]
    return constructors if len(constructors) == len(wraps) else []


def sources_of(file: File) -> list[bytes]:
    """The files that may run with ``file`` and speak of FSDP."""
    return [file.project.sources[path] for path in _paths(file)]


def has_units(wraps: list[Wrap], sources: list[bytes]) -> bool:
    """Whether models that ``wraps`` make may have units inside."""
    words = {word.arg for one in wraps for word in one.call.keywords}
    # What a function that is given the constructor wraps may be a part.
    inside = any(one.is_inner or not one.is_constructor for one in wraps) or any(
        WRAPS_INSIDE.search(source) for source in sources
    )
    named = None in words and any(POLICY.encode() in source for source in sources)
    return inside or named or POLICY in words


def _paths(file: File) -> list[str]:
    programs = file.project.entered.programs
    return [path for path in file.project.sources if programs.may_share(file.path, path)]


@once
def _wraps(module: cst.CSTNode, file: File) -> tuple[list[Wrap], dict[tuple[str, int], list[Wrap]], list[Wrap]]:
    """Every wrap of the program, those of each file and line, and those of parts."""
    wraps = [*_wraps_in(file)]
    by_place: dict[tuple[str, int], list[Wrap]] = defaultdict(list)
    for one in wraps:
        by_place[one.path, one.call.lineno].append(one)
    return wraps, by_place, [one for one in wraps if one.is_inner]


def _wraps_in(file: File) -> Iterator[Wrap]:
    """Every call of the program that wraps, or hands FSDP1's constructor on with arguments for it."""
    for path in _paths(file):
        source = file.project.sources[path]
        aliases = file.project.aliases(path)
        targets: dict[int, ast.expr] = {}
        nodes = [*walk(parsed(source))]
        for node in nodes:
            for target, value in assigned(node):
                targets[id(value)] = target
        inside = {id(one) for node in nodes if _is_module(node) for one in walk(node)}
        for node in nodes:
            if isinstance(node, ast.Call) and _is_wrap(node, aliases):
                constructs = _is_constructor(node.func, aliases)
                yield Wrap(path, node, targets.get(id(node)), id(node) in inside, constructs)


def _is_module(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef) and "forward" in {getattr(one, "name", "") for one in node.body}


def _is_wrap(call: ast.Call, aliases: dict[str, str]) -> bool:
    given = [*call.args, *(word.value for word in call.keywords)]
    handed_on = bool(call.keywords) and any(_is_constructor(one, aliases) for one in given)
    return handed_on or _is_constructor(call.func, aliases)


def _is_constructor(node: ast.expr, aliases: dict[str, str]) -> bool:
    return expand(text_of(node) or "", aliases).endswith(f".{FSDP}")


def built(wrap: Wrap, sources: list[bytes]) -> list[tuple[str, ...]]:
    """The classes of the module that ``wrap`` is given, as far as one name is followed; empty ones where unknown."""
    text = text_of(wrap.call.args[0])
    if text is None:
        return [chain_of(wrap.call.args[0])]
    values = [value for source in sources for value in _values(source).get(text, ())]
    made = [chain_of(one) for one in values if one is not wrap.call and text_of(one) is None]
    return [one for one in made if one[0:1] != (FSDP,)] or [()]


@lru_cache(maxsize=32)
def parsed(source: bytes) -> ast.Module:
    """The tree of a file that the project has parsed."""
    return ast.parse(source)


@lru_cache(maxsize=32)
def _values(source: bytes) -> dict[str, list[ast.expr]]:
    """What a file assigns to each dotted name."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in walk(parsed(source)):
        for target, value in assigned(node):
            found[text_of(target) or ""].append(value)
    return found
