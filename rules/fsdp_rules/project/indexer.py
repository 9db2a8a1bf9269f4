"""Where the values of one file go: assignments, returns, arguments, attributes and containers."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Set

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.project.aliases import Aliases, text_of
from fsdp_rules.project.askers import asks_for_fsdp1
from fsdp_rules.project.call_arguments import Calls
from fsdp_rules.project.definitions import (
    base_calls,
    fields,
    given_by_name,
    is_property,
    is_super,
    is_tuple,
    makes_switch,
    named_fields,
    switches,
)
from fsdp_rules.project.places import ANY, Place, any_name
from fsdp_rules.project.plain_parameters import plain_parameters
from fsdp_rules.project.texts import NO_MODEL, OTHER_WRAPPERS, lambda_name
from fsdp_rules.project.walking import children, walk
from fsdp_rules.project.wraps import Wraps

#: Methods that put what they are given into what they are called on.
PUTTING = frozenset({"add", "append", "appendleft", "extend", "insert", "put", "setdefault", "update"})
#: Calls whose keywords become attributes of what they give.
NAMESPACES = frozenset({"Namespace", "SimpleNamespace", "_replace", "evolve", "replace"})


class Indexer(Calls):
    """Collects what :class:`fsdp_rules.project.facts.FileFacts` holds about one file."""

    def __init__(
        self, path: str, aliases: Aliases, wraps: Wraps, gated: Mapping[int, bool], kept: Set[int] = frozenset()
    ) -> None:
        super().__init__(path, aliases, wraps, gated, kept)
        self.functions: dict[str, tuple[str, ...]] = {}
        #: The name of the rest of the keywords of each function that takes one.
        self.keywords: dict[str, str] = {}
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

    def run(self, tree: ast.Module, subgroups: frozenset[tuple[int, int]]) -> None:
        """Index the whole file; ``subgroups`` are the places of the process groups that are not of all ranks."""
        self.subgroups = subgroups
        self._body(tree.body, "")
        self.flows = [self.settled(flow) for flow in self.flows]

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
                self._looped(node.target, node.iter, scope)
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
            self.keywords[inner] = arguments.kwarg.arg
        if is_property(node) and scope in self.wraps.classes:
            self.flow(Place("ret", self.path, inner), Place("var", self.path, scope, f"self.{node.name}"))
            self.flow(Place("ret", self.path, inner), Place("attr", self.path, name=node.name))
        self._decorators(node, inner, scope)
        self._body(node.body, inner)

    def _asker(self, inner: str, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        if (alone := asks_for_fsdp1(node, self.aliases)) is not None:
            self.askers[inner] = alone

    def _decorators(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, inner: str, scope: str) -> None:
        for decorator in node.decorator_list:
            self._expression(decorator, scope)
            self.decorated(decorator, inner, scope)

    def _class(self, node: ast.ClassDef, scope: str) -> None:
        inner = f"{scope}.{node.name}" if scope else node.name
        self.classes[inner] = tuple(text for base in node.bases if (text := text_of(base)))
        self.bases[inner] = [full for base in node.bases if (full := self.aliases.dotted(base))]
        self.supers[inner] = base_calls(node)
        for base in node.bases:
            if self.aliases.known(base) == FSDP:
                self.found(base)
                self.wrappers.add(inner)
        self._decorators(node, inner, scope)
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

    def _looped(self, target: ast.expr, each: ast.expr, scope: str) -> None:
        """What a loop over ``each`` gives to its ``target``: of pairs that a call gives one may be a model."""
        self._assign(target, each, scope, sure=False)
        called = self.aliases.dotted(each.func) if isinstance(each, ast.Call) else None
        if called is None or not isinstance(target, ast.Tuple | ast.List) or not isinstance(each, ast.Call):
            return
        for callee in self.callees(called, each.func, scope):
            for element in (one for one in target.elts[1:] if not _names_another(one)):
                for place in self.targets(_last(element), scope):
                    self.flow(Place("call", self.path, scope, callee), place, False)

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
                        self._passed_on(value, position, place, scope)
                elif parts is None and not _names_another(element):
                    for place in self.targets(_last(element), scope):
                        self.value(value, place, scope, sure=False)
            return
        for place in self.targets(target, scope):
            self.value(value, place, scope, sure)

    def _passed_on(self, call: ast.Call, position: int, place: Place, scope: str) -> None:
        """What the ``position``-th name of a loop over ``enumerate``, ``zip`` or named parameters runs over."""
        callee = call.func.attr if isinstance(call.func, ast.Attribute) else text_of(call.func)
        if (call.lineno, call.col_offset) in self.subgroups:
            self.flow(Place("subgroup", self.path), place)
        elif position == 0 and self.aliases.dotted(call.func) in OTHER_WRAPPERS:
            self.flow(Place("other", self.path), place)
        elif callee == "zip" and position < len(call.args):
            self.value(call.args[position], place, scope, sure=False)
        elif callee == "enumerate" and position == 1 and call.args:
            self.value(call.args[0], place, scope, sure=False)
        elif callee == "items" and position == 1 and isinstance(call.func, ast.Attribute):
            self.value(call.func.value, place, scope, sure=False)

    def _expression(self, node: ast.AST, scope: str) -> None:
        for child in walk(node):
            if isinstance(child, ast.Call):
                self._call(child, scope)
            elif isinstance(child, ast.Lambda):
                self.functions[lambda_name(child, scope)] = self.anonymous(child, scope)
            elif isinstance(child, ast.NamedExpr):
                self._assign(child.target, child.value, scope)
            elif isinstance(child, ast.comprehension):
                self._looped(child.target, child.iter, scope)
            elif isinstance(child, ast.Yield | ast.YieldFrom) and child.value is not None:
                self._given(child.value, scope, sure=False)

    def _call(self, node: ast.Call, scope: str) -> None:
        if isinstance(node.func, ast.Attribute) and is_super(node.func.value):
            for base in self.bases.get(self.wraps.owner(scope), ()):
                self.arguments(f"{base}.{node.func.attr}", node, scope)
            return
        callee = self.aliases.dotted(node.func)
        is_namespace = str(callee or getattr(node.func, "attr", "")).rpartition(".")[2] in NAMESPACES
        for keyword in (one for one in node.keywords if is_namespace and one.arg is not None):
            self.value(keyword.value, Place("attr", self.path, name=keyword.arg or ""), scope)
        if callee is None:
            self.unnamed_call(node, scope)
            return
        if canonical(callee) == FSDP:
            self.found(node)
        into = node.func if isinstance(node.func, ast.Attribute) and node.func.attr in PUTTING else None
        if into is not None and (held := text_of(into.value)) is not None:
            # A dictionary is updated by one; an average is updated by a model, which it does not keep.
            given = [one for one in node.args if into.attr != "update" or isinstance(one, ast.Dict)]
            for argument in [*given, *(keyword.value for keyword in node.keywords)]:
                self.value(argument, self.put(scope, any_name(held)), scope, sure=False)
        if (named := given_by_name(node, callee)) is not None:
            self._set(node, *named, scope)
        for name in self.callees(callee, node.func, scope):
            self.arguments(name, node, scope)
        self.handed_functions(node, scope)

    def _set(self, node: ast.Call, owner: ast.expr, name: ast.expr, value: ast.expr, scope: str) -> None:
        if isinstance(name, ast.Constant) and isinstance(name.value, str):
            target = ast.copy_location(ast.Attribute(owner, name.value, ast.Store()), node)
            self._assign(target, value, scope)
        elif (text := text_of(owner)) is not None:
            self.value(value, self.var(scope, f"{text}.{ANY}"), scope, False)


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
