"""Functions that wrap with FSDP1 where code chooses between them and ones that shard with FSDP2: both are kept."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fsdp_rules.project.aliases import Aliases, text_of
from fsdp_rules.project.gates import MEGATRON
from fsdp_rules.project.places import module_name
from fsdp_rules.project.walking import walk

#: What a file names that wraps, shards, or chooses between functions that do.
CHOOSES = re.compile(rb"fsdp|shard|wrap|parallel|strateg", re.IGNORECASE)
#: Files whose wraps only test the others.
TEST = re.compile(r"(^|/)(tests?/|test_[^/]*$|[^/]*_test\.py$)")
#: The names that each alternative of one choice reads, by their dotted names.
Choice = tuple[frozenset[str], ...]
#: The first and the last line of a function or class.
Lines = tuple[int, int]


class Sides(NamedTuple):
    """What one file wraps with FSDP1, shards with FSDP2 and chooses between, all by dotted names.

    ``old`` and ``new`` are functions, classes and methods; ``put`` what is registered under a text, by what registers
    it; ``calls`` what each function names; ``wraps`` the lines of all wraps of FSDP1.
    """

    old: dict[str, Lines]
    new: frozenset[str]
    choices: tuple[Choice, ...]
    put: tuple[tuple[str, str], ...]
    calls: dict[str, frozenset[str]]
    wraps: frozenset[int]


class Source(NamedTuple):
    """One file: its path, its bytes, and the lines on which it wraps models with FSDP1."""

    path: str
    data: bytes
    wraps: frozenset[int]


@dataclass(frozen=True)
class Twins:
    """The lines of FSDP1's functions that have a twin, by file, and whether no other wraps a model, outside of tests.

    ``wraps`` are the lines, by file, of the wraps that have no FSDP2 branch in their own function.
    """

    lines: Mapping[str, tuple[Lines, ...]] = field(default_factory=dict)
    are_all: bool = False
    wraps: Mapping[str, frozenset[int]] = field(default_factory=dict)

    def flags(self, flags: frozenset[str], renamed: bool) -> frozenset[str]:
        """``flags`` of the project; ``renamed``: whether another file gives a wrap its name."""
        if renamed:
            return flags | {"fsdp1"}
        return (flags - {"fsdp1"}) | {"gated"} if self.are_all else flags

    def keeps(self, path: str, line: int) -> bool:
        """Whether the wrap in ``line`` stays FSDP1's in a project that has others to rewrite."""
        if self.are_all or not any(self.wraps.values()):
            return False
        return line not in self.wraps.get(path, (line,)) or self.has(path, line)

    def has(self, path: str, line: int) -> bool:
        """Whether ``line`` of the file at ``path`` is in a function with an FSDP2 twin."""
        return any(first <= line <= last for first, last in self.lines.get(path, ()))


def _sides(source: Source) -> Sides:
    tree, module, wraps = ast.parse(source.data), module_name(source.path), source.wraps
    aliases = Aliases(tree, module, is_package=source.path.endswith("__init__.py"))
    defined = dict(_defined(tree))
    methods: dict[str, list[str]] = defaultdict(list)
    for name in defined:
        methods[name.rpartition(".")[2]].append(name)

    def names(*nodes: ast.AST) -> frozenset[str]:
        return frozenset(name for node in nodes for one in walk(node) for name in named(one))

    def named(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.ImportFrom):
            yield from (f"{aliases.absolute(node.module, node.level)}.{alias.name}" for alias in node.names)
        if not isinstance(node, ast.Name | ast.Attribute) or (text := text_of(node)) is None:
            return
        root, _, rest = text.partition(".")
        if root in aliases.names:
            yield aliases.dotted(node) or text
        elif root in ("self", "cls") and "." not in rest:
            yield from (f"{module}.{name}" for name in methods[rest])
        elif root in defined:
            yield f"{module}.{text}"
        else:
            yield from (f"{starred}.{text}" for starred in aliases.starred)

    shards = {node.lineno for node in walk(tree) if isinstance(node, ast.Call) and _is_fully_shard(node, aliases)}
    old: dict[str, Lines] = {}
    new: set[str] = set()
    for name, node in defined.items():
        lines = (node.lineno, node.end_lineno or node.lineno)
        is_old, is_new = (any(lines[0] <= line <= lines[1] for line in found) for found in (wraps, shards))
        if is_old and not is_new:
            old[f"{module}.{name}"] = lines
        elif is_new and not is_old:
            new.add(f"{module}.{name}")
    choices = tuple(choice for choice in _choices(tree, names) if sum(map(bool, choice)) > 1)
    put = tuple(
        (register, f"{module}.{name}")
        for name, node in defined.items()
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and decorator.args and isinstance(decorator.args[0], ast.Constant)
        for register in sorted(names(decorator.func))
    )
    calls = {f"{module}.{name}": names(*node.body) for name, node in defined.items()}
    return Sides(old, frozenset(new), choices, put, calls, wraps)


def twins(given: Iterable[Source], flags: frozenset[str], resolve: Callable[[str], str]) -> Twins:
    """The functions of the ``given`` files that one choice has as its FSDP1 side, where another side of it is FSDP2's.

    None where the ``flags`` of the project name one FSDP alone.
    """
    sources = [*given]
    wraps = {source.path: source.wraps for source in sources}
    if not flags >= {"fsdp1", "fsdp2"}:
        return Twins(wraps=wraps)
    found = [(source.path, _sides(source)) for source in sources if source.data]
    old = {name: (path, lines) for path, sides in found for name, lines in sides.old.items()}
    new = frozenset().union(*(sides.new for _, sides in found))
    calls = {name: given for _, sides in found for name, given in sides.calls.items()}
    choices = [choice for _, sides in found for choice in sides.choices]
    registered: dict[str, list[frozenset[str]]] = defaultdict(list)
    for _, sides in found:
        for register, name in sides.put:
            registered[resolve(register)].append(frozenset({name}))
    lines: dict[str, set[Lines]] = defaultdict(set)
    for choice in (*choices, *registered.values()) if old and new else ():
        arms = [_reached(arm, calls, resolve) for arm in choice]
        if any(arm & new and not arm & old.keys() for arm in arms):
            for path, span in (old[name] for arm in arms if not arm & new for name in arm & old.keys()):
                lines[path].add(span)
    chosen = Twins({path: tuple(sorted(spans)) for path, spans in lines.items()}, False, wraps)
    left = any(not chosen.has(path, line) for path, sides in found if not TEST.search(path) for line in sides.wraps)
    return replace(chosen, are_all=(bool(lines) or "gated" in flags) and not left)


def _reached(names: Iterable[str], calls: Mapping[str, frozenset[str]], resolve: Callable[[str], str]) -> set[str]:
    reached: set[str] = set()
    pending = {resolve(name) for name in names}
    while pending:
        reached |= pending
        pending = {resolve(other) for name in pending for other in calls.get(name, ())} - reached
    return reached


def _defined(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{inner.name}", inner


def _is_fully_shard(call: ast.Call, aliases: Aliases) -> bool:
    """Whether ``call`` is of FSDP2's function, not of a method of that name that another framework's model has."""
    root, _, rest = (text_of(call.func) or "").partition(".")
    if (aliases.dotted(call.func) or "").startswith(f"{MEGATRON}."):
        return False
    return (rest or root).rpartition(".")[2] == "fully_shard" and (not rest or root in aliases.names)


def _choices(tree: ast.Module, names: Callable[..., frozenset[str]]) -> Iterator[Choice]:
    """What each construct that chooses reads in each of its alternatives."""
    kept: dict[str, list[frozenset[str]]] = defaultdict(list)
    for node in walk(tree):
        match node:
            case ast.If(test=_, body=body, orelse=orelse):
                yield names(*body), names(*orelse)
            case ast.IfExp():
                yield names(node.body), names(node.orelse)
            case ast.Dict():
                yield tuple(names(value) for value in node.values)
            case ast.Call(func=ast.Name(id="dict")):
                yield tuple(names(keyword.value) for keyword in node.keywords)
            case ast.Match():
                yield tuple(names(*case.body) for case in node.cases)
            case ast.Assign(targets=[ast.Subscript(value=target)]):
                kept[text_of(target) or ""].append(names(node.value))
        yield from _early(getattr(node, "body", ()), names)
        yield from _early(getattr(node, "orelse", ()), names)
    yield from map(tuple, kept.values())


def _early(found: object, names: Callable[..., frozenset[str]]) -> Iterator[Choice]:
    """Branches that leave the block: what follows them is another alternative."""
    block = found if isinstance(found, list) else []
    for index, node in enumerate(block):
        if isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Return | ast.Raise):
            yield names(*node.body), names(*block[index + 1 :])
