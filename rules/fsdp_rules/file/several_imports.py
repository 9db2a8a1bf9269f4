"""Which imports are the module's or a function's own, and which import a use of a name reads."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.tree import Layout, leaves
from fsdp_rules.fsdp1.names import canonical
from fsdp_rules.project.gates import statements
from fsdp_rules.project.walking import walk

#: Whether what is imported at one place is there at another: not, maybe, or surely.
_NEVER, _MAYBE, _ALWAYS = range(3)


@dataclass(frozen=True)
class Imported:
    """One import of a name: what it stands for, fully dotted, and the statement."""

    target: str
    statement: cst.CSTNode


class SeveralImports:
    """The names of one file that FSDP1's API and something else are imported under.

    ``imports`` are the local names, targets and lines of all imports; ``resolve`` follows re-exports of the project.
    """

    def __init__(self, layout: Layout, imports: Iterable[tuple[str, str, int]], resolve: Callable[[str], str]) -> None:
        self._layout = layout
        self._resolve = resolve
        lines = {layout.span(node).line: node for kind in (cst.ImportFrom, cst.Import) for node in layout.nodes(kind)}
        found: dict[str, list[Imported]] = {}
        for name, target, line in imports:
            if line in lines:
                found.setdefault(name, []).append(Imported(target, lines[line]))
        self._found = {
            name: entries
            for name, entries in found.items()
            if len({self._meaning(entry.target) for entry in entries}) > 1
            and any(canonical(resolve(entry.target)) is not None for entry in entries)
            # FSDP1 beside FSDP2, by the version of torch, is another question.
            and not all(resolve(entry.target).startswith("torch.") for entry in entries)
        }

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def _meaning(self, target: str) -> str:
        return canonical(self._resolve(target)) or target

    def at(self, name: str, node: cst.CSTNode) -> tuple[str, ...]:
        """What ``name`` may stand for where ``node`` is: several targets only where they mean different things."""
        found = dict.fromkeys(entry.target for entry in self._reaching(self._found[name], node))
        meanings = {self._meaning(target): target for target in found}
        return tuple(meanings.values())

    def _reaching(self, entries: list[Imported], node: cst.CSTNode) -> Iterator[Imported]:
        function = self._layout.function(node)
        owner = function
        while True:
            own = [entry for entry in entries if self._layout.function(entry.statement) is owner]
            if own or owner is None:
                break
            owner = self._layout.function(owner)
        line = self._layout.span(node).line
        for entry in reversed(own):
            if owner is function and self._layout.span(entry.statement).line > line:
                continue
            reaches = self._reaches(entry, own, node)
            if reaches != _NEVER:
                yield entry
            if reaches == _ALWAYS:
                return

    def _reaches(self, entry: Imported, entries: list[Imported], node: cst.CSTNode) -> int:
        around = [node, *self._layout.ancestors(node)]
        child, found = entry.statement, _ALWAYS
        for ancestor in self._layout.ancestors(entry.statement):
            if isinstance(ancestor, cst.FunctionDef | cst.ClassDef):
                break
            if isinstance(ancestor, cst.If | cst.Try | cst.For | cst.While) and child not in around:
                if isinstance(ancestor, cst.If) and ancestor in around:
                    return _NEVER
                if _leaves(child):
                    return _NEVER
                if isinstance(ancestor, cst.Try):
                    if child is not ancestor.body and self._is_fallback(ancestor, entries):
                        return _NEVER
                    found = found if child is ancestor.body else _MAYBE
                else:
                    found = _MAYBE
            child = ancestor
        return found

    def _is_fallback(self, statement: cst.Try, entries: list[Imported]) -> bool:
        """Whether the handlers of ``statement`` import what its body has from torch, which the output needs anyhow."""
        body = [entry for entry in entries if statement.body in self._layout.ancestors(entry.statement)]
        return any(entry.target.startswith("torch.") for entry in body)


def _leaves(arm: cst.CSTNode) -> bool:
    """Whether ``arm``, of a compound statement, ends by leaving the function or the turn of the loop."""
    suite = arm.body if isinstance(arm, cst.Else | cst.ExceptHandler | cst.If) else arm
    return isinstance(suite, cst.BaseSuite) and leaves(suite)


def imported_above(tree: ast.Module) -> frozenset[str]:
    """The names that imports outside of functions bind."""
    inner = [entry for entry in statements(tree) if isinstance(entry, ast.FunctionDef | ast.AsyncFunctionDef)]
    own = {id(entry) for function in inner for entry in walk(function)}
    return frozenset(_bound(alias) for entry, alias in _aliases(tree) if id(entry) not in own)


def import_in_a_function(tree: ast.Module, local: str) -> str:
    """The first absolute import of ``tree`` that binds ``local``, of that name alone; "" where none does."""
    for entry, alias in _aliases(tree):
        if _bound(alias) == local and not getattr(entry, "level", 0):
            source = f"from {entry.module} " if isinstance(entry, ast.ImportFrom) else ""
            return f"{source}import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
    return ""


def _aliases(tree: ast.Module) -> Iterator[tuple[ast.Import | ast.ImportFrom, ast.alias]]:
    for entry in statements(tree):
        if isinstance(entry, ast.Import | ast.ImportFrom):
            yield from ((entry, alias) for alias in entry.names)


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]
