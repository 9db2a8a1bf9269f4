"""Where the values of one file go: assignments, returns, arguments, attributes and containers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Set

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.project.aliases import Aliases, text_of
from fsdp_rules.project.askers import asks_for_fsdp1
from fsdp_rules.project.definitions import (
    base_calls,
    fields,
    is_property,
    is_tuple,
    makes_switch,
    named_fields,
    switches,
)
from fsdp_rules.project.places import Place
from fsdp_rules.project.plain_parameters import plain_parameters
from fsdp_rules.project.texts import NO_MODEL, OTHER_WRAPPERS
from fsdp_rules.project.values import Values
from fsdp_rules.project.walking import children, walk
from fsdp_rules.project.wraps import Wraps

#: Methods that put what they are given into what they are called on.
PUTTING = frozenset({"add", "append", "appendleft", "extend", "insert", "put", "setdefault"})


class Indexer(Values):
    """Collects what :class:`fsdp_rules.project.facts.FileFacts` holds about one file."""

    def __init__(
        self, path: str, aliases: Aliases, wraps: Wraps, gated: Mapping[int, bool], kept: Set[int] = frozenset()
    ) -> None:
        super().__init__(path, aliases, wraps, gated, kept)
        self.functions: dict[str, tuple[str, ...]] = {}
        #: The parameters of each function that are no objects.
        self.plain: dict[str, frozenset[str]] = {}
        #: The last names of the bases of each class, and the methods of them that it calls.
        self.classes: dict[str, tuple[str, ...]] = {}
        self.supers: dict[str, frozenset[str]] = {}
        self.bases: dict[str, list[str]] = {}
        self.makers: set[str] = set()
        self.wrappers: set[str] = set()
        self.switchers: set[str] = set()
        #: The functions that ask for FSDP1's class, and whether for it alone.
        self.askers: dict[str, bool] = {}

    def run(self, tree: ast.Module) -> None:
        """Index the whole file."""
        self._body(tree.body, "")

    def _body(self, body: Iterable[ast.stmt], scope: str) -> None:
        for statement in body:
            self._statement(statement, scope)

    def _statement(self, node: ast.stmt, scope: str) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, scope)
                return
            case ast.ClassDef():
                self._class(node, scope)
                return
            case ast.Assign():
                for target in node.targets:
                    self._assign(target, node.value, scope)
            case ast.AnnAssign(value=ast.expr() as value):
                self._assign(node.target, value, scope)
            case ast.AugAssign():
                self._assign(node.target, node.value, scope, sure=False)
            case ast.Return(value=ast.expr() as value):
                self._return(value, scope)
            case ast.For() | ast.AsyncFor():
                self._assign(node.target, node.iter, scope, sure=False)
            case ast.Global() | ast.Nonlocal():
                outer = "" if isinstance(node, ast.Global) else scope.rpartition(".")[0]
                for name in node.names:
                    self.flow(self.var(scope, name), self.var(outer, name))
                    self.flow(self.var(outer, name), self.var(scope, name))
            case ast.With() | ast.AsyncWith():
                for item in node.items:
                    if item.optional_vars is not None:
                        self._assign(item.optional_vars, item.context_expr, scope, sure=False)
        for child in children(node):
            if isinstance(child, ast.stmt):
                self._statement(child, scope)
            elif isinstance(child, ast.ExceptHandler | ast.match_case):
                self._body(child.body, scope)
            else:
                self._expression(child, scope)

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: str) -> None:
        inner = f"{scope}.{node.name}" if scope else node.name
        arguments = node.args
        names = [arg.arg for arg in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]]
        rest = [arg.arg for arg in (arguments.vararg, arguments.kwarg) if arg is not None]
        self.functions[inner] = tuple(names)
        if plain := plain_parameters(node):
            self.plain[inner] = plain
        if switches(node):
            self.switchers.add(inner)
        self._asker(inner, node)
        for name in [*names, *rest]:
            given = Place("param", self.path, inner, name)
            self.assigned.add((inner, name))
            self.flow(given, self.var(inner, name))
            if (inner, name) in self.since:
                self.flow(given, self.var(inner, name, early=True))
        if arguments.vararg is not None:
            self.flow(Place("param", self.path, inner, "*"), self.var(inner, arguments.vararg.arg), False)
        if arguments.kwarg is not None:
            self.flow(Place("param", self.path, inner, "**"), self.var(inner, arguments.kwarg.arg), False)
        if is_property(node) and scope in self.wraps.classes:
            self.flow(Place("ret", self.path, inner), Place("var", self.path, scope, f"self.{node.name}"))
            self.flow(Place("ret", self.path, inner), Place("attr", self.path, name=node.name))
        self._decorators(node, scope)
        self._body(node.body, inner)

    def _asker(self, inner: str, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        if (alone := asks_for_fsdp1(node, self.aliases)) is not None:
            self.askers[inner] = alone

    def _decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: str) -> None:
        for decorator in node.decorator_list:
            self._expression(decorator, scope)

    def _class(self, node: ast.ClassDef, scope: str) -> None:
        inner = f"{scope}.{node.name}" if scope else node.name
        self.classes[inner] = tuple(text for base in node.bases if (text := text_of(base)))
        self.bases[inner] = [full for base in node.bases if (full := self.aliases.dotted(base))]
        self.supers[inner] = base_calls(node)
        for base in node.bases:
            if self.aliases.known(base) == FSDP:
                self.found(base)
                self.wrappers.add(inner)
        self._decorators(node, scope)
        if names := fields(node):
            self._fields(inner, names, is_tuple(node))
        self._body(node.body, inner)

    def _fields(self, owner: str, names: Iterable[str], are_elements: bool) -> None:
        """What the constructor of the class ``owner`` does that takes the fields called ``names``."""
        initializer = f"{owner}.__init__"
        self.functions[initializer] = ("self", *names)
        for name in names:
            given = Place("param", self.path, initializer, name)
            self.flow(given, Place("var", self.path, owner, f"self.{name}"))
            self.flow(given, Place("attr", self.path, name=name))
            if are_elements:
                self.flow(given, Place("ret", self.path, f"{owner}.__getitem__"), False)

    def _return(self, value: ast.expr, scope: str) -> None:
        if self.aliases.is_factory(value) or text_of(value) in self.aliases.factories:
            self.makers.add(scope)
        self._given(value, scope)

    def _given(self, value: ast.expr, scope: str, sure: bool = True) -> None:
        """What the function returns or yields, part by part where it is a tuple."""
        if isinstance(value, ast.Tuple):
            for position, element in enumerate(value.elts):
                self.value(element, Place("ret", self.path, scope, part=str(position)), scope, sure)
                self.value(element, Place("ret", self.path, scope), scope, sure=False)
        else:
            self.value(value, Place("ret", self.path, scope), scope, sure)

    def _assign(self, target: ast.expr, value: ast.expr, scope: str, sure: bool = True) -> None:
        if isinstance(target, ast.Name):
            named, asked = f"{scope}.{target.id}" if scope else target.id, text_of(value)
            if isinstance(value, ast.Lambda):
                self._asker(named, value)
            elif asked in self.askers:
                self.askers[named] = self.askers[asked]
            if makes_switch(value):
                self.switchers.add(named)
            if names := named_fields(value):
                self.classes[named] = ()
                self._fields(named, names, True)
        if isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else None
            for position, element in enumerate(target.elts):
                if parts is not None and position < len(parts):
                    self._assign(element, parts[position], scope, sure)
                elif isinstance(value, ast.Call):
                    callee = self.aliases.dotted(value.func)
                    for place in self.targets(_last(element), scope):
                        for name in self.callees(callee, value.func, scope) if callee is not None else ():
                            self.flow(Place("call", self.path, scope, name, str(position)), place, sure)
                        if position == 0 and callee in OTHER_WRAPPERS:
                            self.flow(Place("other", self.path), place)
                elif parts is None and not _names_another(element):
                    for place in self.targets(_last(element), scope):
                        self.value(value, place, scope, sure=False)
            return
        for place in self.targets(target, scope):
            self.value(value, place, scope, sure)

    def _expression(self, node: ast.AST, scope: str) -> None:
        for child in walk(node):
            if isinstance(child, ast.Call):
                self._call(child, scope)
            elif isinstance(child, ast.NamedExpr):
                self._assign(child.target, child.value, scope)
            elif isinstance(child, ast.comprehension):
                self._assign(child.target, child.iter, scope, sure=False)
            elif isinstance(child, ast.Yield | ast.YieldFrom) and child.value is not None:
                self._given(child.value, scope, sure=False)

    def _call(self, node: ast.Call, scope: str) -> None:
        callee = self.aliases.dotted(node.func)
        if callee is None:
            if isinstance(node.func, ast.Attribute):
                made = self.aliases.dotted(node.func.value.func) if isinstance(node.func.value, ast.Call) else None
                self.arguments(f"{made or '?'}.{node.func.attr}", node, scope)
            return
        if canonical(callee) == FSDP:
            self.found(node)
        into = node.func if isinstance(node.func, ast.Attribute) and node.func.attr in PUTTING else None
        if into is not None and (held := text_of(into.value)) is not None:
            for argument in [*node.args, *(keyword.value for keyword in node.keywords)]:
                self.value(argument, self.var(scope, held), scope, sure=False)
        for name in self.callees(callee, node.func, scope):
            self.arguments(name, node, scope)


def _last(target: ast.expr) -> ast.expr:
    """The value among names that are unpacked into, as in ``for i, (name, parameter) in enumerate(...)``."""
    while isinstance(target, ast.Tuple | ast.List) and target.elts:
        target = target.elts[-1]
    return target


def _names_another(target: ast.expr) -> bool:
    """Whether ``target``, one of several names that a value is unpacked into, is called after something else.

    Which part of a value goes to which name is not known; that its model goes to ``optimizer`` can be left out.
    """
    return isinstance(target, ast.Name) and NO_MODEL.search(target.id) is not None
