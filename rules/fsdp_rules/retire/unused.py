"""What only FSDP1's branches used: imports, functions, classes and members that nothing names any more."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from fsdp_rules.fsdp1.names import canonical
from fsdp_rules.project.aliases import Aliases, reads, text_of
from fsdp_rules.project.walking import walk

_WORD = re.compile(r"[A-Za-z_]\w*")
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Names:
    """What one file names.

    ``mentions`` counts what is read, imported, or written in a text, ``imported`` what is imported from other files, by
    the last part of the module's name.
    ``defined`` are its functions, classes, methods and members of enums, by their qualified names: the last part of
    each, and how often it names itself.
    """

    mentions: Counter[str]
    imported: Counter[str] = field(default_factory=Counter)
    defined: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: ast.Module) -> Names:
        """Those of a file."""
        imported = Counter(
            f"{(node.module or '').rpartition('.')[2]}.{alias.name}"
            for node in walk(tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        )
        defined = {}
        for name, node in _definitions(tree):
            last = name.rpartition(".")[2]
            defined[name] = (last, _mentions([node])[last])
        return cls(_mentions([tree]), imported, defined)

    def dead(self, released: Collection[str], total: Counter[str]) -> set[str]:
        """The definitions among the ``released`` names that are named nowhere else in the tree."""
        return {name for name, (last, own) in self.defined.items() if last in released and total[last] == own}


def _mentions(nodes: Iterable[ast.AST]) -> Counter[str]:
    found: Counter[str] = Counter()
    for node in (one for start in nodes for one in walk(start)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                found[name] += 1
            case ast.Constant(value=str(text)):
                found.update(_WORD.findall(text))
            case ast.ImportFrom(names=names):
                found.update(one.name for one in names)
    return found


def unused_imports(before: ast.Module, now: ast.Module, aliases: Aliases, exported: Collection[str]) -> set[str]:
    """The names that ``now`` imports and does not read, FSDP1's or ones that ``before`` read; not the ``exported``."""
    was, still = reads(before), reads(now)
    bound = {
        alias.asname or alias.name.partition(".")[0]
        for node in walk(now)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    known = {name for name in bound if canonical(aliases.names.get(name, "")) is not None}
    return {name for name in bound if name in was | known and name not in still and name not in exported}


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """The functions and classes that nothing decorates, their methods, and the members of enums, which stay."""
    for node in tree.body:
        bases = [text_of(base) or "" for base in node.bases] if isinstance(node, ast.ClassDef) else []
        is_enum = any(base.endswith("Enum") for base in bases)
        if isinstance(node, _Definition) and not node.decorator_list and not is_enum:
            yield node.name, node
        if not isinstance(node, ast.ClassDef):
            continue
        for one in node.body:
            match one:
                case ast.FunctionDef(name=name, decorator_list=[]) | ast.AsyncFunctionDef(name=name, decorator_list=[]):
                    yield f"{node.name}.{name}", one
                case ast.Assign(targets=[ast.Name(id=name)]) if is_enum:
                    yield f"{node.name}.{name}", one


def unused_variables(before: ast.Module, now: ast.Module, aliases: Aliases) -> set[int]:
    """The lines of ``now`` that give FSDP1's arguments to names which its functions no longer read."""
    was = {node.name: node for node in walk(before) if isinstance(node, ast.FunctionDef)}
    found: set[int] = set()
    for function in walk(now):
        if not isinstance(function, ast.FunctionDef) or function.name not in was:
            continue
        read, old = _loads(function), _loads(was[function.name])
        for node in walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name in old and name not in read:
                    if _only_makes_arguments(value, aliases):
                        found.add(node.lineno)
    return found


def _loads(function: ast.FunctionDef) -> set[str]:
    """The names that ``function`` reads, or shares with other code."""
    found: set[str] = set()
    for node in walk(function):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                found.add(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                found.update(names)
    return found


def _only_makes_arguments(value: ast.expr, aliases: Aliases) -> bool:
    calls = [node for node in walk(value) if isinstance(node, ast.Call)]
    known = any(isinstance(node, ast.expr) and aliases.known(node) is not None for node in walk(value))
    return known and all(aliases.known(call.func) is not None for call in calls)
