"""Lowers the ``ast`` of a file to operations: each binding of a name is a value, and values join where ways meet."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fsdp_rules.ir import operations as ops
from fsdp_rules.ir.lowered_expressions import Expressions, Function, Names
from fsdp_rules.ir.narrowing import absent, available
from fsdp_rules.ir.nodes import are_pairs, names_stored, place_of
from fsdp_rules.ir.operations import At, Body, Span
from fsdp_rules.ir.optimizer_calls import optimizer_calls
from fsdp_rules.ir.patterns import capture

SUMMON = "summon_full_params"
#: What a ``with`` or a decorator says where no gradients are recorded.
NO_GRADIENT = ("no_grad", "inference_mode")


def lowered(tree: ast.Module, path: str) -> Body:
    """The body of a whole module."""
    body = Body(path, "module", "", At(0, 0, 0, 0))
    lowering = Statements(body, tree.body)
    lowering.block(tree.body)
    body.optimizers = optimizer_calls(body.operations)
    return body


def _function(node: Function, name: str, outer: Body) -> Body:
    """The body of a function or lambda in ``outer``."""
    a = node.args
    positional = [one.arg for one in (*a.posonlyargs, *a.args)]
    every = (*positional, *(one.arg for one in a.kwonlyargs))
    rest = a.vararg.arg if a.vararg is not None else ""
    keywords = a.kwarg.arg if a.kwarg is not None else ""
    kind = "lambda" if isinstance(node, ast.Lambda) else "function"
    body = Body(outer.path, kind, name, place_of(node), every, len(positional), rest, keywords)
    body.available |= outer.available
    statements: Sequence[ast.stmt] = [] if isinstance(node, ast.Lambda) else node.body
    lowering = Statements(body, statements)
    for one in (*every, *filter(None, (rest, keywords))):
        body.bound.add(one)
        lowering.bind(one, lowering.new())
    if isinstance(node, ast.Lambda):
        body.operations.append(ops.Return(lowering.value(node.body)))
    else:
        lowering.block(node.body)
    if any(_names(one, *NO_GRADIENT) for one in getattr(node, "decorator_list", ())):
        body.detached.append(Span(0, len(body.operations)))
    body.optimizers = optimizer_calls(body.operations)
    body.is_generator = any(isinstance(one, ops.Yield) for one in body.operations)
    body.is_async = isinstance(node, ast.AsyncFunctionDef)
    return body


class Statements(Expressions):
    """Lowers the statements of one scope."""

    def __init__(self, body: Body, statements: Sequence[ast.stmt]) -> None:
        super().__init__(body, statements)
        #: What the names are where a loop is left, or begins again, for each loop around.
        self._left: list[list[Names]] = []

    def block(self, statements: Iterable[ast.stmt]) -> None:
        """Lower statements that follow each other."""
        for one in statements:
            self.statement(one)

    def statement(self, node: ast.stmt) -> None:
        """Lower one statement."""
        match node:
            case ast.Expr():
                self.value(node.value)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=given)) if are_pairs(
                targets, given
            ):
                for target, value in zip(targets, [self.value(one) for one in given], strict=True):
                    self.assign(target, value)
            case ast.Assign():
                value, before = self.value(node.value), dict(self.names or {})
                for target in node.targets:
                    self.assign(target, value)
                    if isinstance(node.value, ast.Call):
                        self._rebind(target, node.value, before)
            case ast.AnnAssign(value=ast.expr() as given):
                self.assign(node.target, self.value(given))
            case ast.AugAssign():
                self._augmented(node)
            case ast.Return():
                if node.value is not None:
                    self.add(ops.Return(self.value(node.value)))
                    self.body.gathers |= _gathers(node.value)
                self.names = None
            case ast.Raise():
                self._inside(node)
                self.names = None
            case ast.Break() | ast.Continue():
                if self._left:
                    self._left[-1].append(self.names)
                self.names = None
            case ast.If():
                self.value(node.test)
                self.body.absent += absent(node.test, {True: node.body, False: node.orelse}, self.names or {})
                self._branches([partial(self._arm, node, truth) for truth in (True, False)])
            case ast.For() | ast.AsyncFor():
                several = self.value(node.iter)
                self._loop(node, lambda: self.assign(node.target, self.element(several)))
            case ast.While():
                self._loop(node, lambda: self.value(node.test))
            case ast.With() | ast.AsyncWith():
                managers: list[int] = []
                for item in node.items:
                    held = self.value(item.context_expr)
                    managers.append(held)
                    to = self.new()
                    self.add(ops.Entered(to, held))
                    if item.optional_vars is not None:
                        self.assign(item.optional_vars, to)
                gathered = self.gathers
                self.gathers |= any(_gathers(item.context_expr) for item in node.items)
                begin = len(self.body.operations)
                self.block(node.body)
                if any(_names(item.context_expr, *NO_GRADIENT) for item in node.items):
                    self.body.detached.append(Span(begin, len(self.body.operations)))
                self.body.entered += [(one, Span(begin, len(self.body.operations))) for one in managers]
                if self.gathers:
                    self.body.gathered.append(Span(begin, len(self.body.operations)))
                self.gathers = gathered
            case ast.Try():
                self._try(node)
            case ast.Match():
                self._match(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._decorated(node, self.function(node, node.name))
            case ast.ClassDef():
                self._class(node)
            case ast.Import():
                for name in node.names:
                    self._import(name.asname or name.name.partition(".")[0], name)
            case ast.ImportFrom():
                self._import_from(node)
            case ast.Assert():
                self._inside(node)
                self.narrow(node.test, True)
            case _ if isinstance(node, ast.Delete) or type(node).__name__ == "TryStar":
                self._inside(node)

    def _arm(self, node: ast.If, truth: bool) -> None:
        self.narrow(node.test, truth)
        self.block(node.body if truth else node.orelse)

    def _rebind(self, target: ast.expr, call: ast.Call, before: dict[str, int]) -> None:
        """Note the names that are given to ``call`` and stand for what it gives: ``model, x = prepare(model, x)``."""
        targets = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        bound = {one.id for one in targets if isinstance(one, ast.Name)}
        given = {one.id for one in call.args if isinstance(one, ast.Name)} & bound & before.keys()
        func = self.value(call.func) if given else 0
        for name in sorted(given):
            self.add(ops.Rebound(self.read(name), before[name], func))

    def _augmented(self, node: ast.AugAssign) -> None:
        before, given = self.value(node.target), self.value(node.value)
        to, func = self.new(), self.new()
        self.add(ops.Import(func, "operator", f"i{type(node.op).__name__}"))
        self.add(ops.Call(to, func, (before, given), frozenset(), (), place_of(node.target)))
        self.assign(node.target, to)

    def body_of(self, node: Function, name: str) -> Body:
        """The body of a function or lambda."""
        return _function(node, name, self.body)

    # Ways

    def _branches(self, ways: Iterable[Callable[[], None]]) -> None:
        start = self.names
        ends, arms = [], []
        for way in ways:
            self.names = dict(start) if start is not None else None
            begin = len(self.body.operations)
            way()
            ends.append(self.names)
            arms.append(Span(begin, len(self.body.operations), self.names is None))
        self.body.arms.append(tuple(arms))
        self.names = self._joined(ends)

    def _joined(self, ends: Iterable[Names]) -> Names:
        """What the names are where several ways meet."""
        alive = [one for one in ends if one is not None]
        if not alive:
            return None
        every = dict.fromkeys(name for one in alive for name in one)
        return {name: self.join(one[name] for one in alive if name in one) for name in every}

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, head: Callable[[], object]) -> None:
        before = self.names
        changing = names_stored(node)
        if self.names is not None:
            # Each name that the loop binds is what it was before, or what the last round made it.
            heads = {name: self.new() for name in sorted(changing) if name in self.names}
            for name, to in heads.items():
                self.add(ops.Copy(to, self.names[name]))
            self.names = {**self.names, **heads}
        else:
            heads = {}
        start = dict(self.names) if self.names is not None else None
        self._left.append([])
        begin = len(self.body.operations)
        head()
        self.block(node.body)
        self.body.loops.append(Span(begin, len(self.body.operations)))
        ends = [self.names, *self._left.pop()]
        for end in ends:
            for name, to in heads.items():
                if end is not None and end.get(name, to) != to:
                    self.add(ops.Copy(to, end[name]))
        self.names = self._joined([start if start is not None else before, *ends])
        self.block(node.orelse)

    def _try(self, node: ast.Try) -> None:
        before = dict(self.names) if self.names is not None else None
        self.body.available |= available(node)
        self.block(node.body)
        broken = self._joined([before, self.names])
        self.block(node.orelse)
        ends = [self.names]
        for handler in node.handlers:
            self.names = dict(broken) if broken is not None else None
            self.block(handler.body)
            ends.append(self.names)
        ended = self._joined(ends)
        self.names = broken if ended is None and node.finalbody else ended
        self.block(node.finalbody)
        self.names = None if ended is None else self.names

    def _match(self, node: ast.Match) -> None:
        subject = self.value(node.subject)

        def arm(case: ast.match_case) -> Callable[[], None]:
            def run() -> None:
                capture(case.pattern, subject, self)
                if case.guard is not None:
                    self.value(case.guard)
                self.block(case.body)

            return run

        self._branches([*map(arm, node.cases), lambda: None])

    # Definitions

    def _decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, made: int) -> None:
        for one in reversed(node.decorator_list):
            func, to = self.value(one), self.new()
            self.add(ops.Call(to, func, (made,), frozenset(), (), place_of(one)))
            made = to
        self.bind(node.name, made)

    def _class(self, node: ast.ClassDef) -> None:
        bases = [("", self.value(one)) for one in node.bases]
        bases += [(one.arg or "", self.value(one.value)) for one in node.keywords]
        body = Body(self.body.path, "class", node.name, place_of(node), available={*self.body.available})
        inner = Statements(body, node.body)
        inner.block(node.body)
        body.fields = tuple(
            one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        )
        body.is_decorated = bool(node.decorator_list)
        to = self.new()
        self.add(ops.Define(to, body, tuple(bases)))
        self._decorated(node, to)

    def _import(self, name: str, alias: ast.alias) -> None:
        to = self.new()
        self.add(ops.Import(to, alias.name if alias.asname else name, None))
        if not alias.asname and "." in alias.name:
            # The import runs the inner module as well.
            self.add(ops.Import(self.new(), alias.name, None))
        self.bind(name, to)

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = "." * node.level + (node.module or "")
        for name in node.names:
            if name.name == "*":
                self.body.stars.append(module)
                continue
            to = self.new()
            self.add(ops.Import(to, module, name.name))
            self.bind(name.asname or name.name, to)


def _gathers(node: ast.expr) -> bool:
    return _names(node, SUMMON)


def _names(node: ast.expr, *names: str) -> bool:
    func = node.func if isinstance(node, ast.Call) else node
    return isinstance(func, ast.Name | ast.Attribute) and any(name in ast.unparse(func) for name in names)
