"""Lowers the expressions of a scope, and what binds its names."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from fsdp_rules.ir import operations as ops
from fsdp_rules.ir.narrowing import absent, asked_class, narrowings
from fsdp_rules.ir.nodes import bound_in, declared, defaults_of, joined_text, place_of
from fsdp_rules.ir.operations import Body

#: The value of each name at one point of a scope; None where no way leads there.
Names = dict[str, int] | None
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_TRUTHS = ast.Is | ast.IsNot | ast.In | ast.NotIn


class Expressions:
    """Lowers the expressions of one scope; ``names`` is what each name is at the point that is reached."""

    def __init__(self, body: Body, statements: Sequence[ast.stmt]) -> None:
        self.body = body
        self.names: Names = {}
        #: Whether the point is in a ``with`` that gathers full parameters.
        self.gathers = False
        self.globals, self.nonlocals = declared(statements)
        body.bound |= bound_in(statements) - self.globals - self.nonlocals

    def new(self) -> int:
        """A value that nothing is yet."""
        self.body.size += 1
        return self.body.size - 1

    def add(self, operation: ops.Operation) -> None:
        """One more operation."""
        self.body.operations.append(operation)

    def join(self, values: Iterable[int]) -> int:
        """A value that may be each of ``values``."""
        every = list(dict.fromkeys(values))
        if len(every) == 1:
            return every[0]
        to = self.new()
        for one in every:
            self.add(ops.Copy(to, one))
        return to

    # Names

    def bind(self, name: str, value: int) -> None:
        """``name = value``."""
        if name in self.globals or name in self.nonlocals:
            self.add(ops.Bind(name, value, "global" if name in self.globals else "nonlocal"))
            return
        if self.names is not None:
            self.names[name] = value
        self.add(ops.Bind(name, value, ""))

    def read(self, name: str) -> int:
        """The value of ``name`` here."""
        if self.names is not None and name in self.names:
            return self.names[name]
        to = self.new()
        self.add(ops.Free(to, name))
        return to

    # Expressions

    def value(self, node: ast.expr) -> int:
        """The value of an expression, whose place is noted."""
        to = self._value(node)
        self.body.uses.append((place_of(node), to))
        return to

    def _value(self, node: ast.expr) -> int:
        match node:
            case ast.Name():
                return self.read(node.id)
            case ast.Attribute():
                of, to = self.value(node.value), self.new()
                self.add(ops.GetAttribute(to, of, node.attr))
                return to
            case ast.Call():
                return self._call(node)
            case ast.Constant():
                return self.constant(node.value)
            case ast.Subscript():
                of, cut = self.value(node.value), node.slice
                ends = (cut.lower, cut.upper, cut.step) if isinstance(cut, ast.Slice) else ()
                bounds = tuple(self.value(one) for one in ends if one is not None)
                key = None if isinstance(cut, ast.Slice) else self.value(cut)
                to = self.new()
                self.add(ops.GetItem(to, of, key, bounds))
                return to
            case ast.Tuple() | ast.List() | ast.Set():
                return self._display(node.elts)
            case ast.Dict():
                return self._dictionary(node)
            case ast.NamedExpr():
                self.bind(node.target.id, to := self.value(node.value))
                return to
            case ast.IfExp():
                self.value(node.test)
                arms = {True: [node.body], False: [node.orelse]}
                self.body.absent += absent(node.test, arms, self.names or {})
                return self.join(self.under(node.test, one, partial(self.value, *arms[one])) for one in arms)
            case ast.BoolOp():
                return self.join([self.value(one) for one in node.values])
            case ast.BinOp():
                return self.operator(type(node.op).__name__, node, *map(self.value, (node.left, node.right)))
            case ast.UnaryOp(operand=ast.Constant(value=int() as number), op=ast.USub()):
                return self.constant(-number)
            case ast.UnaryOp():
                return self.operator(type(node.op).__name__, node, self.value(node.operand))
            case ast.Await():
                return self.value(node.value)
            case ast.Starred():
                return self.element(self.value(node.value))
            case ast.Lambda():
                return self.function(node, "<lambda>")
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self._comprehension(node.generators, node.elt)
            case ast.DictComp():
                return self._comprehension(node.generators, node.value, node.key)
            case ast.Yield():
                self.add(ops.Yield(self.value(node.value) if node.value is not None else self.new()))
                self.body.gathers |= self.gathers
                return self.new()
            case ast.YieldFrom():
                self.add(ops.Yield(self.element(self.value(node.value))))
                return self.new()
            case ast.Compare():
                name = "Is" if any(isinstance(one, _TRUTHS) for one in node.ops) else "Compare"
                return self.operator(name, node, *map(self.value, (node.left, *node.comparators)))
            case ast.JoinedStr():
                return self._joined_text(node)
        self._inside(node)
        return self.new()

    def narrow(self, test: ast.expr, truth: bool) -> None:
        """Make names what they are where ``test`` is true, or false."""
        for name, classes, is_one in narrowings(test, truth, self.body.available):
            if self.names is None or name not in self.names:
                continue
            of, to = self.names[name], self.new()
            for cls in map(self.value, classes):
                self.add(ops.Narrowed(to, of, cls, is_one))
                # It is of one of several classes, or of none of them.
                of, to = (of, to) if is_one else (to, self.new())
            self.names[name] = to if is_one else of

    def under(self, test: ast.expr, truth: bool, run: Callable[[], int]) -> int:
        """What ``run`` gives where ``test`` is true, or false."""
        before = dict(self.names) if self.names is not None else None
        self.narrow(test, truth)
        found = run()
        if self.names is not None and before is not None:
            again = {one.name for one in narrowings(test, truth, self.body.available)} & before.keys()
            self.names = {**self.names, **{name: before[name] for name in again}}
        return found

    def _inside(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
            elif isinstance(child, ast.keyword | ast.FormattedValue):
                self._inside(child)

    def constant(self, value: object) -> int:
        """The value of a string or a number."""
        to = self.new()
        if value is None or isinstance(value, str | int | float | bool | ops.Text):
            self.add(ops.Constant(to, value))
        return to

    def _joined_text(self, node: ast.JoinedStr) -> int:
        text = self.constant(joined_text(node.values))
        filled = [one for one in node.values if isinstance(one, ast.FormattedValue)]
        parts = [self.value(part) for one in filled for part in (one.value, one.format_spec) if part is not None]
        return self.join([text, self.operator("JoinedStr", node, text, *parts)])

    def operator(self, name: str, node: ast.expr, *values: int) -> int:
        """What the operator ``name`` makes of ``values``: as what a call of the function of ``operator`` gives."""
        to, func = self.new(), self.new()
        self.add(ops.Import(func, "operator", name))
        self.add(ops.Call(to, func, values, frozenset(), (), place_of(node)))
        return to

    def element(self, of: int) -> int:
        """What a loop over ``of`` gives."""
        to = self.new()
        self.add(ops.Element(to, of))
        return to

    def _call(self, node: ast.Call) -> int:
        func = self.value(node.func)
        args = [self.value(one.value if isinstance(one, ast.Starred) else one) for one in node.args]
        starred = frozenset(place for place, one in enumerate(node.args) if isinstance(one, ast.Starred))
        keywords = tuple((one.arg, self.value(one.value)) for one in node.keywords)
        if self.gathers:
            args = [self._gathered(one) for one in args]
            keywords = tuple((name, self._gathered(one)) for name, one in keywords)
        to = self.new()
        self.add(ops.Call(to, func, tuple(args), starred, keywords, place_of(node)))
        if self.gathers and isinstance(node.func, ast.Attribute):
            return self._gathered(to, node.func.attr)
        return to

    def _gathered(self, of: int, method: str = "") -> int:
        to = self.new()
        self.add(ops.Gathered(to, of, method))
        return to

    def _display(self, elements: Sequence[ast.expr]) -> int:
        to = self.new()
        self.add(ops.Display(to, False))
        for place, one in enumerate(elements):
            if isinstance(one, ast.Starred):
                self.add(ops.Unpacked(to, self.value(one.value)))
            else:
                self.add(ops.SetItem(to, self.constant(place), self.value(one)))
        return to

    def _dictionary(self, node: ast.Dict) -> int:
        to = self.new()
        self.add(ops.Display(to, True))
        for key, one in zip(node.keys, node.values, strict=True):
            if key is None:
                self.add(ops.Unpacked(to, self.value(one)))
            else:
                self.add(ops.SetItem(to, self.value(key), self.value(one)))
        return to

    def _comprehension(self, loops: Sequence[ast.comprehension], element: ast.expr, key: ast.expr | None = None) -> int:
        before = dict(self.names) if self.names is not None else None
        begin = len(self.body.operations)
        for loop in loops:
            self.assign(loop.target, self.element(self.value(loop.iter)))
            for test in loop.ifs:
                self.value(test)
                self.narrow(test, True)
        to = self.new()
        self.add(ops.Display(to, key is not None))
        number = self.value(key) if key is not None else None
        self.add(ops.SetItem(to, number, self.value(element)))
        self.body.loops.append(ops.Span(begin, len(self.body.operations)))
        self.names = before
        return to

    # Bindings

    def assign(self, target: ast.expr, value: int) -> None:
        """``target = value``."""
        match target:
            case ast.Name():
                self.bind(target.id, value)
                self.body.uses.append((place_of(target), value))
            case ast.Attribute():
                self.add(ops.SetAttribute(self.value(target.value), target.attr, value))
                self.body.uses.append((place_of(target), value))
            case ast.Subscript():
                of = self.value(target.value)
                key = None if isinstance(target.slice, ast.Slice) else self.value(target.slice)
                self.add(ops.SetItem(of, key, value))
            case ast.Starred():
                rest = self.new()
                self.add(ops.Display(rest, False))
                self.add(ops.Unpacked(rest, value))
                self.assign(target.value, rest)
            case ast.Tuple() | ast.List():
                self._unpack(target.elts, value)

    def _unpack(self, targets: Sequence[ast.expr], value: int) -> None:
        starred = next((place for place, one in enumerate(targets) if isinstance(one, ast.Starred)), len(targets))
        for place, one in enumerate(targets):
            if place == starred:
                self.assign(one, value)
                continue
            to = self.new()
            key = self.constant(place if place < starred else place - len(targets))
            self.add(ops.GetItem(to, value, key))
            self.assign(one, to)

    def function(self, node: Function, name: str) -> int:
        """The value of a function or lambda."""
        body = self.body_of(node, name)
        given, to, cls = defaults_of(node.args), self.new(), asked_class(node, self.body.available)
        asks = None if cls is None else self.value(cls)
        self.add(ops.Define(to, body, tuple((name, self.value(default)) for name, default in given), asks))
        return to

    def body_of(self, node: Function, name: str) -> Body:
        """The body of a function or lambda."""
        raise NotImplementedError
