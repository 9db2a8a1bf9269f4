"""Transformations of statements and functions that keep the meaning of a program: the same work is done elsewhere."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import partial

from tests.fuzz import scopes
from tests.fuzz.same_values import MAIN, OTHER, Files, Transformation
from tests.fuzz.scopes import expression, replaced, sites, statements, text


def around_one(code: str, imports: str = "") -> Transformation:
    """One statement of a function is the first block of ``code``."""
    return partial(_around, code, imports, False)


def around_all(code: str, imports: str = "") -> Transformation:
    """The body of a function is the first block of ``code``."""
    return partial(_around, code, imports, True)


def _around(code: str, imports: str, is_all: bool, source: str) -> Iterator[Files]:
    for number, function in enumerate(scopes.top_functions(ast.parse(source))):
        for index in range(1 if is_all else len(function.body)):
            tree = ast.parse(source)
            body = scopes.top_functions(tree)[number].body
            (made,) = statements(code)
            inner = made.body[0] if isinstance(made, ast.FunctionDef) else made
            inner.body = body[:] if is_all else [body[index]]  # type: ignore[attr-defined]
            body[:] = [made] if is_all else [*body[:index], made, *body[index + 1 :]]
            yield {MAIN: (f"{imports}\n" if imports else "") + text(tree)}


def helper(source: str) -> Iterator[Files]:
    """A statement is a function of the same file."""
    for tree, _, definition in _extracted(source):
        scopes.define(tree, definition)
        yield {MAIN: text(tree)}


def helper_elsewhere(source: str) -> Iterator[Files]:
    """A statement is a function of another file."""
    for tree, _, definition in _extracted(source):
        yield _beside(tree, source, definition, "helper")


def method_helper(source: str) -> Iterator[Files]:
    """A statement is a static method of a class."""
    for tree, call, definition in _extracted(source):
        lines = "".join(f"    {line}\n" for line in definition.splitlines())
        scopes.define(tree, f"class Helper:\n    @staticmethod\n{lines}")
        call.func = expression("Helper.helper")
        yield {MAIN: text(tree)}


def closure(source: str) -> Iterator[Files]:
    """A statement is a function inside of its function, which reads the names around it."""
    for tree, call, definition in _extracted(source):
        statement = scopes.statement_of(tree, call)
        inner = ast.parse(definition).body[0]
        assert isinstance(inner, ast.FunctionDef)
        if {one.arg for one in inner.args.args} & scopes.stored(inner.body):
            continue
        inner.args.args, call.args = [], []
        replaced(tree, statement, [inner, statement])
        yield {MAIN: text(tree)}


def factory(source: str) -> Iterator[Files]:
    """A call is a function of the same file that returns it."""
    for tree, _, definition in _made(source):
        scopes.define(tree, definition)
        yield {MAIN: text(tree)}


def factory_elsewhere(source: str) -> Iterator[Files]:
    """A call is a function of another file that returns it."""
    for tree, _, definition in _made(source):
        yield _beside(tree, source, definition, "make")


def factory_of_a_pair(source: str) -> Iterator[Files]:
    """A call is a function that returns it beside something else."""
    for tree, call, definition in _made(source):
        head, _, value = definition.rpartition("return ")
        scopes.define(tree, f"{head}return ({value.strip()}, None)")
        replaced(tree, call, expression("_[0]", _=ast.Call(call.func, call.args, [])))
        yield {MAIN: text(tree)}


def generator(source: str) -> Iterator[Files]:
    """A call is the one value of a generator."""
    for tree, call, definition in _made(source):
        scopes.define(tree, definition.replace("return ", "yield ", 1))
        replaced(tree, call, expression("next(_)", _=ast.Call(call.func, call.args, [])))
        yield {MAIN: text(tree)}


def class_attribute(source: str) -> Iterator[Files]:
    """The locals of a function are attributes of an object, and the function is its method."""
    for index, function in enumerate(scopes.top_functions(ast.parse(source))):
        is_free = scopes.may_move([*_without_returns(function.body)]) and not scopes.imported(function.body)
        if not scopes.is_simple(function) or not is_free:
            continue
        tree = ast.parse(source)
        function = scopes.top_functions(tree)[index]
        given = [one.arg for one in function.args.args]
        names = {*given, *scopes.stored(function.body)}
        body = [_OfSelf(names).visit(node) for node in function.body]
        call = statements(f"def {function.name}({', '.join(given)}):\n    return Job({', '.join(given)}).run()")
        keeps = "".join(f"        self.{name} = {name}\n" for name in given) or "        pass\n"
        head = f"class Job:\n    def __init__({', '.join(['self', *given])}):\n{keeps}    def run(self):\n        pass"
        (job,) = statements(head)
        assert isinstance(job, ast.ClassDef)
        job.body[1].body = body  # type: ignore[attr-defined]
        replaced(tree, function, [job, *call])
        yield {MAIN: text(tree)}


class _OfSelf(ast.NodeTransformer):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Attribute(ast.Name("self", ast.Load()), node.id, node.ctx) if node.id in self.names else node


def _without_returns(body: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    for node in body:
        for part in ast.walk(node):
            if not isinstance(part, ast.Return) and not isinstance(part, ast.stmt):
                yield part


def other_file(source: str) -> Iterator[Files]:
    """A function is called from another file."""
    for function in scopes.top_functions(ast.parse(source)):
        given = ", ".join(f"{one.arg}" for one in function.args.args)
        main = f"from program.helpers import {function.name}\n\n"
        main += f"def start({given}):\n    return {function.name}({given})\n"
        yield {MAIN: main, OTHER: text(ast.parse(source))}


def main_function(source: str) -> Iterator[Files]:
    """What the top level does is done by ``main()``, and its functions are called from there."""
    tree = ast.parse(source)
    imported = scopes.imports(tree)
    if any(alias.name == "*" for node in imported for alias in getattr(node, "names", ())):
        return
    (main,) = statements("def main():\n    pass")
    assert isinstance(main, ast.FunctionDef)
    defined = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    functions = scopes.top_functions(tree)
    body = [node for node in tree.body if node not in imported and node not in defined]
    if functions:
        given = ", ".join(f"load({one.arg!r})" for one in functions[-1].args.args)
        body += statements(f"return {functions[-1].name}({given})")
        imported = [*statements("from program.inputs import load"), *imported]
    if not body:
        return
    main.body = body
    tree.body = [*imported, *defined, main, *statements("if __name__ == '__main__':\n    main()")]
    inputs = (
        "import sys\nimport torch\n\ndef load(name):\n    return torch.load(sys.argv[1], weights_only=False)[name]\n"
    )
    yield {MAIN: text(tree), **({"program/inputs.py": inputs} if functions else {})}


def script(source: str) -> Iterator[Files]:
    """What the last function does is done at the top level of a file, with values of another file."""
    tree = ast.parse(source)
    functions = scopes.top_functions(tree)
    if not functions or not scopes.is_simple(functions[-1]):
        return
    last = functions[-1]
    returns = [node for node in ast.walk(last) if isinstance(node, ast.Return)]
    if any(isinstance(node, ast.Name) and node.id == last.name for node in ast.walk(tree)):
        return
    if any(node is not last.body[-1] for node in returns) or not scopes.may_move(_without_returns_of(last)):
        return
    if returns and returns[0].value is not None:
        last.body[-1:] = statements("result = _", _=returns[0].value)
    given = [one.arg for one in last.args.args]
    head = statements("\n".join(f"from program.inputs import {name}" for name in given))
    replaced(tree, last, last.body)
    tree.body[:0] = head
    inputs = "import torch\n\n" + "".join(f"{name} = torch.load('{name}.pt', weights_only=False)\n" for name in given)
    yield {MAIN: text(tree), **({"program/inputs.py": inputs} if given else {})}


def _without_returns_of(function: ast.FunctionDef) -> list[ast.stmt]:
    return [node for node in function.body if not isinstance(node, ast.Return)]


def _extracted(source: str) -> Iterator[tuple[ast.Module, ast.Call, str]]:
    """Each statement of a function as a call of ``helper``, in its tree, beside the definition of that."""

    def applies(node: ast.stmt, tree: ast.Module) -> bool:
        inner = [node.value] if isinstance(node, ast.Return) and node.value is not None else [node]
        is_in = scopes.owner(tree, node) in scopes.top_functions(tree)
        return is_in and not isinstance(node, ast.FunctionDef) and scopes.may_move(inner)

    for tree, node in sites(source, ast.stmt, applies):
        function = scopes.owner(tree, node)
        assert function is not None
        given = scopes.read([node], tree)
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            given = sorted({*given, node.target.id})
        bound = scopes.stored([node])
        others = [one for one in ast.walk(function) if isinstance(one, ast.Name) and one not in set(ast.walk(node))]
        results = sorted(
            name for name in bound if any(one.id == name for one in others if isinstance(one.ctx, ast.Load))
        )
        if isinstance(node, ast.For | ast.While | ast.If | ast.Try) and not set(results) <= set(given):
            continue
        call = ast.Call(ast.Name("helper", ast.Load()), [ast.Name(name, ast.Load()) for name in given], [])
        inside = text(node)
        if isinstance(node, ast.Return):
            made = statements("return _", _=call)
        elif results:
            inside += f"return {', '.join(results)}\n"
            made = statements(f"{', '.join(results)} = _", _=call)
        else:
            made = statements("_", _=call)
        replaced(tree, node, made)
        body = "".join(f"    {line}\n" for line in inside.splitlines())
        yield tree, call, f"def helper({', '.join(given)}):\n{body}"


def _made(source: str) -> Iterator[tuple[ast.Module, ast.Call, str]]:
    """Each call of a function as a call of ``make``, in its tree, beside the definition of that."""

    def applies(node: ast.Call, tree: ast.Module) -> bool:
        return scopes.owner(tree, node) in scopes.top_functions(tree) and scopes.may_move([node])

    for tree, node in sites(source, ast.Call, applies):
        given = scopes.read([node], tree)
        call = ast.Call(ast.Name("make", ast.Load()), [ast.Name(name, ast.Load()) for name in given], [])
        replaced(tree, node, call)
        yield tree, call, f"def make({', '.join(given)}):\n    return {ast.unparse(node)}\n"


def _beside(tree: ast.Module, source: str, definition: str, name: str) -> Files:
    """``tree`` importing ``name`` from another file, which has the imports and definitions of ``source``."""
    before = ast.parse(source)
    tree.body[:0] = statements(f"from program.helpers import {name}")
    needed = {node.id for node in ast.walk(ast.parse(definition)) if isinstance(node, ast.Name)}
    own = [node for node in before.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in needed]
    head = "".join(f"{ast.unparse(node)}\n" for node in [*scopes.imports(before), *own])
    return {MAIN: text(tree), OTHER: f"{head}\n{definition}"}
