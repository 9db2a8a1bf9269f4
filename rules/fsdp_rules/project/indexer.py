"""What one file defines, assigns and wraps, by its scopes."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Set

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.project.aliases import Aliases, text_of
from fsdp_rules.project.askers import asks_for_fsdp1
from fsdp_rules.project.definitions import base_calls, fields, named_fields
from fsdp_rules.project.walking import children

_SIMPLE = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For | ast.AsyncFor | ast.NamedExpr | ast.comprehension


class Indexer:
    """Collects what :class:`fsdp_rules.project.facts.FileFacts` holds about one file.

    ``gated`` are the lines in branches for another torch or another FSDP, ``kept`` those of wraps that a comment keeps.
    """

    def __init__(self, aliases: Aliases, gated: Mapping[int, bool], kept: Set[int] = frozenset()) -> None:
        self.aliases = aliases
        self.gates = gated
        self.comments = kept
        self.flags: set[str] = set()
        #: The lines on which models are wrapped; those in gates, and those of wraps that stay.
        self.wrapped: set[int] = set()
        self.gated: set[int] = set()
        self.kept: set[int] = set()
        #: Every (scope, name) that is assigned.
        self.assigned: set[tuple[str, str]] = set()
        self.functions: dict[str, tuple[str, ...]] = {}
        #: The last names of the bases of each class, and the methods of them that it calls.
        self.classes: dict[str, tuple[str, ...]] = {}
        self.supers: dict[str, frozenset[str]] = {}
        #: The functions that ask for FSDP1's class, and whether for it alone.
        self.askers: dict[str, bool] = {}

    def run(self, nodes: Iterable[ast.AST], scope: str = "") -> None:
        """Index ``nodes``, of the function or class ``scope``, and all in them."""
        for node in nodes:
            inner = scope
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{scope}.{node.name}" if scope else node.name
                self.run(node.decorator_list, scope)
                self._class(node, inner) if isinstance(node, ast.ClassDef) else self._function(node, inner)
                self.run(node.body, inner)
                continue
            if isinstance(node, _SIMPLE):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._assign(target, node.iter if hasattr(node, "iter") else node.value, scope)
            elif isinstance(node, ast.withitem) and node.optional_vars is not None:
                self._assign(node.optional_vars, node.context_expr, scope)
            elif isinstance(node, ast.Call):
                self._call(node)
            self.run(children(node), inner)

    def _found(self, node: ast.expr, stays: bool) -> None:
        """Note that the file wraps a model at ``node``; ``stays``: by FSDP1 in any case."""
        is_gated = self.gates.get(node.lineno)
        self.flags.add("gated" if is_gated else "fsdp1")
        (self.gated if is_gated else self.wrapped).add(node.lineno)
        if stays:
            self.kept.add(node.lineno)
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "process_group" and not isinstance(keyword.value, ast.Constant | ast.Tuple):
                self.flags.add("own_group")

    def _call(self, node: ast.Call) -> None:
        callee = self.aliases.dotted(node.func)
        if callee is not None and canonical(callee) == FSDP:
            self._found(node, node.lineno in self.comments)
        elif self.aliases.wraps(node):
            self._found(node, False)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, inner: str) -> None:
        arguments = node.args
        names = [arg.arg for arg in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
        rest = [arg.arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
        self.functions[inner] = tuple(names)
        self.assigned.update((inner, name) for name in (*names, *rest))
        self._asker(inner, node)

    def _asker(self, inner: str, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        if (alone := asks_for_fsdp1(node, self.aliases)) is not None:
            self.askers[inner] = alone

    def _class(self, node: ast.ClassDef, inner: str) -> None:
        self.classes[inner] = tuple(text for base in node.bases if (text := text_of(base)))
        self.supers[inner] = base_calls(node)
        for base in node.bases:
            if self.aliases.known(base) == FSDP:
                self._found(base, True)
        if names := fields(node):
            self.functions[f"{inner}.__init__"] = ("self", *names)

    def _assign(self, target: ast.expr, value: ast.expr | None, scope: str) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._assign(element, None, scope)
        elif isinstance(target, ast.Starred):
            self._assign(target.value, None, scope)
        elif (text := text_of(target)) is not None:
            self.assigned.add((scope, text))
        if isinstance(target, ast.Name) and value is not None:
            self._named(f"{scope}.{target.id}" if scope else target.id, value)

    def _named(self, named: str, value: ast.expr) -> None:
        """What ``value`` is that is assigned to the name ``named``."""
        asked = text_of(value)
        if isinstance(value, ast.Lambda):
            self._asker(named, value)
        elif asked in self.askers:
            self.askers[named] = self.askers[asked]
        if names := named_fields(value):
            self.classes[named] = ()
            self.functions[f"{named}.__init__"] = ("self", *names)
