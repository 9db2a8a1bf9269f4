"""The facts of a Python source, by its ``ast`` and its comments."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence

from fsdp_migrate.check.weakening.proof_facts import Facts, Number, Text, kind_of

_SKIP = re.compile(r"(?:^|\.)(?:skip|skipif|skipIf|skipUnless|skipTest|xfail|expectedFailure|importorskip|SkipTest)$")
_SEEDING = {"manual_seed", "manual_seed_all", "seed", "seed_all", "set_seed", "seed_everything", "default_rng"}
_NOT_OF_STATES = {"zip", "map", "loads", "load", "dumps"}
_COUNTER = re.compile(r"(?:\w*(?:step|iter|iteration|epoch|batch|idx|index|update)s?|i|it|n|_)")
_CATCHES_ALL = {"AssertionError", "Exception", "BaseException"}
_IGNORE = re.compile(r"#\s*fsdp-migrate:\s*ignore.*")
_TODO = re.compile(r"#\s*TODO\(fsdp-migrate \w+\).*")
_NAMED = (ast.Name, ast.Attribute)


def python_facts(source: bytes) -> Facts | None:
    """The facts of ``source``; None where it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    reader = _Reader()
    reader.block(tree.body, fails=True)
    facts = reader.facts
    lines = source.decode("utf-8", errors="replace").splitlines()
    facts.lines = [line.strip() for line in lines]
    for line, text in _comments(source):
        if _IGNORE.search(text):
            facts.ignores.append(Text(" ".join(text.split()), "", line))
        if _TODO.search(text):
            below = next((one for one in facts.lines[line:] if one and not one.startswith("#")), "")
            facts.todos.append((Text(" ".join(text.split()), "", line), below))
    return facts


def _comments(source: bytes) -> Iterator[tuple[int, str]]:
    try:
        for token in tokenize.tokenize(io.BytesIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError):
        return


class _Reader:
    """Walks statements in the order in which they may run; what nothing reaches is left out."""

    def __init__(self) -> None:
        self.facts = Facts()
        self._scope: list[str] = []

    def block(self, statements: Sequence[ast.stmt], fails: bool) -> None:
        """Read statements; ``fails``: an assert that is not true ends the program."""
        for statement in statements:
            self._statement(statement, fails)
            if isinstance(statement, ast.Return | ast.Raise | ast.Continue | ast.Break):
                return

    def _statement(self, node: ast.stmt, fails: bool) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                self._definition(node, fails)
                return
            case ast.If():
                self._expressions(node.test)
                if _truth(node.test) is not False:
                    self.block(node.body, fails)
                    self._leaves(node)
                if _truth(node.test) is not True:
                    self.block(node.orelse, fails)
                return
            case ast.For() | ast.AsyncFor():
                self._loop(node)
            case ast.Try():
                self.block(node.body, fails and not any(map(_swallows, node.handlers)))
                for handler in node.handlers:
                    self.block(handler.body, fails)
                self.block(node.orelse, fails)
                self.block(node.finalbody, fails)
                return
            case ast.With() | ast.AsyncWith():
                fails = fails and not any(_suppresses(item.context_expr) for item in node.items)
            case ast.Assert():
                if fails and _truth(node.test) is not True:
                    self._add(self.facts.asserts, ast.unparse(ast.Assert(node.test)), node)
            case ast.Expr(value=ast.Call() as call) if _last(call.func).startswith("assert") and fails:
                self._add(self.facts.asserts, ast.unparse(call), node)
            case ast.Raise() if node.exc is not None and _SKIP.search(_dotted(node.exc)):
                self._add(self.facts.skips, ast.unparse(node), node)
            case ast.Assign() | ast.AnnAssign():
                self._assigned(node)
        for name, value in ast.iter_fields(node):
            if name in ("body", "orelse") and isinstance(value, list):
                self.block(value, fails)
            else:
                for part in value if isinstance(value, list) else [value]:
                    if isinstance(part, ast.AST):
                        self._expressions(part)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, fails: bool) -> None:
        self._scope.append(node.name)
        self.facts.scopes[".".join(self._scope)] = node.lineno
        is_test = node.name.startswith("test") and not isinstance(node, ast.ClassDef)
        if is_test:
            self._add(self.facts.tests, node.name, node)
        for decorator in node.decorator_list:
            named = decorator.func if isinstance(decorator, ast.Call) else decorator
            if _SKIP.search(_dotted(named)):
                self._add(self.facts.skips, f"@{ast.unparse(decorator)}", decorator)
            else:
                self._expressions(decorator)
        if not isinstance(node, ast.ClassDef):
            given = node.args
            positional = [*given.posonlyargs, *given.args]
            pairs = [*zip(positional[len(positional) - len(given.defaults) :], given.defaults, strict=True)]
            pairs += [(name, value) for name, value in zip(given.kwonlyargs, given.kw_defaults, strict=True) if value]
            for name, value in pairs:
                self._set(name.arg, value)
        self.block(node.body, fails)
        self._scope.pop()

    def _assigned(self, node: ast.Assign | ast.AnnAssign) -> None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, _NAMED) and node.value is not None:
                name = _last(target)
                self._set(name, node.value)
                is_off = name == "__test__" and _truth(node.value) is False
                if is_off or name in ("collect_ignore", "collect_ignore_glob"):
                    self._add(self.facts.skips, ast.unparse(node), node)
                if name == "pytestmark" and re.search(r"\.(skip|skipif|xfail)\b", ast.unparse(node.value)):
                    self._add(self.facts.skips, ast.unparse(node), node)

    def _loop(self, node: ast.For | ast.AsyncFor) -> None:
        """What says how often a loop runs."""
        call = node.iter
        inner = call.args[0] if isinstance(call, ast.Call) and _last(call.func) == "enumerate" and call.args else call
        if isinstance(inner, ast.Call) and _last(inner.func) == "range" and inner.args:
            value = _number(inner.args[0] if len(inner.args) == 1 else inner.args[1])
            if value is not None and _COUNTER.fullmatch(ast.unparse(node.target).split(",")[0].strip("(")):
                what = f"range of {ast.unparse(node.target)}"
                self.facts.numbers.append(Number("steps", what, value, ".".join(self._scope), node.lineno))
        if isinstance(inner, ast.Call) and _last(inner.func) == "islice":
            self._add(self.facts.limits, ast.unparse(inner), node)
        if isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Slice) and inner.slice.upper is not None:
            self._add(self.facts.limits, ast.unparse(inner), node)

    def _leaves(self, node: ast.If) -> None:
        """A loop that ends at a step."""
        if not any(isinstance(one, ast.Break | ast.Return) for one in node.body):
            return
        match node.test:
            case ast.Compare(left=ast.Name() | ast.Attribute() as left, comparators=[limit]):
                if _COUNTER.fullmatch(_last(left)) and _number(limit) is not None:
                    self._add(self.facts.limits, f"if {ast.unparse(node.test)}: {ast.unparse(node.body[-1])}", node)

    def _expressions(self, node: ast.AST) -> None:
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                self._call(part)
            elif isinstance(part, ast.Dict):
                for key, value in zip(part.keys, part.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        self._set(key.value, value)

    def _call(self, node: ast.Call) -> None:
        name = _last(node.func)
        for keyword in node.keywords:
            if keyword.arg is not None and not (keyword.arg == "strict" and name in _NOT_OF_STATES):
                given = f"{keyword.arg}_tol" if name == "approx" and keyword.arg in ("rel", "abs") else keyword.arg
                self._set(given, keyword.value)
        if name == "load_state_dict" and len(node.args) > 1 and _truth(node.args[1]) is False:
            self._add(self.facts.lax, ast.unparse(node), node)
        if name in _SEEDING and node.args:
            value = _number(node.args[0])
            if value is not None:
                self.facts.numbers.append(Number("seed", f"{name}()", value, ".".join(self._scope), node.lineno))
        if name == "add_argument" and node.args and isinstance(node.args[0], ast.Constant):
            for keyword in node.keywords:
                if keyword.arg == "default":
                    self._set(
                        str(node.args[-1].value if isinstance(node.args[-1], ast.Constant) else ""), keyword.value
                    )
        caps = name == "min" and any(_number(one) is not None for one in node.args)
        if caps and any(isinstance(one, _NAMED) and kind_of(_last(one)) == "steps" for one in node.args):
            self._add(self.facts.limits, ast.unparse(node), node)
        if _SKIP.search(_dotted(node.func)):
            self._add(self.facts.skips, ast.unparse(node), node)
        if _is_hidden(node, name):
            self._add(self.facts.hidden, ast.unparse(node), node)

    def _set(self, name: str, value: ast.expr) -> None:
        """Something of that name is set to a value."""
        plain = name.lstrip("-").replace("-", "_")
        if (plain == "strict" and _truth(value) is False) or (plain == "allow_partial_load" and _truth(value) is True):
            self._add(self.facts.lax, f"{plain}={ast.unparse(value)}", value)
        number = _number(value)
        kind = kind_of(name)
        if number is not None and kind:
            self.facts.numbers.append(Number(kind, plain, number, ".".join(self._scope), value.lineno))

    def _add(self, to: list[Text], text: str, node: ast.stmt | ast.expr) -> None:
        to.append(Text(text, ".".join(self._scope), node.lineno))


def _is_hidden(node: ast.Call, name: str) -> bool:
    """Whether a call makes code or a name at run time that no rule can read."""
    match node:
        case ast.Call(func=ast.Name(id="exec" | "eval")):
            return True
        case ast.Call(args=[ast.Constant(value=str() as module), *_]) if name in ("__import__", "import_module"):
            return "fsdp" in module
        case ast.Call(args=[_, *_]) if name in ("__import__", "import_module"):
            return True
        case ast.Call(args=[_, ast.JoinedStr(values=parts), *_]) if name == "getattr":
            # A part that only the run knows is a name of many, as of layers.
            values = [one.value for one in parts if isinstance(one, ast.FormattedValue)]
            return all(isinstance(one, ast.Constant) for one in values)
        case ast.Call(args=[_, ast.BinOp() | ast.Call(func=ast.Attribute()), *_]) if name == "getattr":
            return True
    return False


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return _dotted(node.func)
    return ast.unparse(node) if isinstance(node, _NAMED) else ""


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _truth(node: ast.expr) -> bool | None:
    """What a condition always is; None where that depends on the run."""
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.Tuple) and node.elts:
        return True
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _truth(node.operand)
        return None if inner is None else not inner
    if isinstance(node, ast.BoolOp):
        decisive = isinstance(node.op, ast.Or)
        return decisive if any(_truth(value) is decisive for value in node.values) else None
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.Is):
        return True if ast.dump(node.left) == ast.dump(node.comparators[0]) else None
    return None


def _number(node: ast.expr) -> float | None:
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.UnaryOp(op=ast.USub()):
            inner = _number(node.operand)
            return None if inner is None else -inner
        case ast.BinOp(op=ast.Mult()):
            left, right = _number(node.left), _number(node.right)
            return None if left is None or right is None else left * right
        case _:
            return None


def _swallows(handler: ast.ExceptHandler) -> bool:
    """Whether a handler catches a failed assert and raises nothing."""
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type] if handler.type else []
    catches = not types or any(_last(one) in _CATCHES_ALL for one in types)
    return catches and not any(isinstance(one, ast.Raise) for each in handler.body for one in ast.walk(each))


def _suppresses(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Call)
        and _last(node.func) == "suppress"
        and any(_last(a) in _CATCHES_ALL for a in node.args)
    )
