"""Transformations of one expression that keep the meaning of a program: the same value comes another way."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import partial

from tests.fuzz import scopes
from tests.fuzz.scopes import expression, replaced, sites, statements, text

#: A program as its files by path; the first one is where it starts.
Files = dict[str, str]
#: All programs that one transformation makes of a source, one for each place where it applies.
Transformation = Callable[[str], Iterator[Files]]
MAIN = "program/main.py"
OTHER = "program/helpers.py"


def rename(source: str) -> Iterator[Files]:
    """A local variable or parameter has a name that says nothing."""
    for function in scopes.top_functions(ast.parse(source)):
        names = {one.arg for one in function.args.args} | (
            scopes.stored(function.body) - scopes.imported(function.body)
        )
        for name in sorted(names):
            tree = ast.parse(source)
            keywords = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
            if name not in keywords | scopes.module_names(tree):
                same = [node for node in scopes.top_functions(tree) if node.name == function.name]
                scopes.rename(same, name, "value_7")
                yield {MAIN: text(tree)}


def alias(source: str) -> Iterator[Files]:
    """A second name is read instead of the first, from an assignment on."""
    for tree, node in sites(source, ast.Assign, _assigns_a_local):
        around = scopes.block(tree, node)
        index = around.index(node)
        rest = around[index + 1 :]
        name = _target(node)
        if name in scopes.stored(rest) or name not in scopes.read(rest, tree):
            continue
        scopes.rename(rest, name, "second")
        around[index + 1 : index + 1] = statements(f"second = {name}")
        yield {MAIN: text(tree)}


def alias_of_a_parameter(source: str) -> Iterator[Files]:
    """A second name is read instead of a parameter."""
    for function in scopes.top_functions(ast.parse(source)):
        for name in [one.arg for one in function.args.args if one.arg not in scopes.stored(function.body)]:
            tree = ast.parse(source)
            same = next(node for node in scopes.top_functions(tree) if node.name == function.name)
            scopes.rename(same.body, name, "second")
            same.body[:0] = statements(f"second = {name}")
            yield {MAIN: text(tree)}


def value(template: str, definitions: str = "", imports: str = "") -> Transformation:
    """What is assigned or returned comes as ``template`` says, in which ``_`` is the value."""
    return partial(_of_values, template, definitions, imports)


def _of_values(template: str, definitions: str, imports: str, source: str) -> Iterator[Files]:
    for tree, node in sites(source, ast.expr, _is_a_value):
        replaced(tree, node, expression(template, _=node))
        yield _with(tree, definitions, imports)


def lines(code: str, definitions: str = "", imports: str = "") -> Transformation:
    """What is assigned to a local comes by the statements ``code``: ``_`` is the value, ``target`` the local's name."""
    return partial(_of_assignments, code, definitions, imports)


def _of_assignments(code: str, definitions: str, imports: str, source: str) -> Iterator[Files]:
    for tree, node in sites(source, ast.Assign, _assigns_a_local):
        made = statements(code.replace("target", _target(node)), _=node.value)
        replaced(tree, node, made)
        yield _with(tree, definitions, imports)


def rest(code: str, imports: str = "") -> Transformation:
    """The statements below an assignment are the last block of ``code``, in which ``_`` is the value."""
    return partial(_of_rests, code, imports)


def _of_rests(code: str, imports: str, source: str) -> Iterator[Files]:
    for tree, node in sites(source, ast.Assign, _assigns_a_local):
        around = scopes.block(tree, node)
        index = around.index(node)
        if not around[index + 1 :]:
            continue
        (made,) = statements(code.replace("target", _target(node)), _=node.value)
        made.body = around[index + 1 :]  # type: ignore[attr-defined]
        around[index:] = [made]
        yield _with(tree, "", imports)


def use(template: str, definitions: str = "", imports: str = "") -> Transformation:
    """A local is read as ``template`` says, in which ``_`` is the local."""
    return partial(_of_uses, template, definitions, imports)


def _of_uses(template: str, definitions: str, imports: str, source: str) -> Iterator[Files]:
    for tree, node in sites(source, ast.Name, _reads_a_local):
        replaced(tree, node, expression(template, _=ast.Name(node.id, ast.Load())))
        yield _with(tree, definitions, imports)


def called(template: str, imports: str = "") -> Transformation:
    """A function is called as ``template`` says, in which ``_`` is the function and its arguments follow."""
    return partial(_of_calls, template, imports)


def _of_calls(template: str, imports: str, source: str) -> Iterator[Files]:
    for tree, node in sites(source, ast.Call, lambda node, tree: not _is_super(node)):
        node.func = expression(template, _=node.func)
        yield _with(tree, "", imports)


def getattr_of(source: str) -> Iterator[Files]:
    """An attribute of a value is read with ``getattr``."""

    def applies(node: ast.Attribute, tree: ast.Module) -> bool:
        return isinstance(node.ctx, ast.Load) and not _is_dotted(node.value, scopes.module_names(tree))

    for tree, node in sites(source, ast.Attribute, applies):
        if _is_super(node.value):
            continue
        replaced(tree, node, expression(f"getattr(_, {node.attr!r})", _=node.value))
        yield {MAIN: text(tree)}


def getattr_of_a_module(source: str) -> Iterator[Files]:
    """An attribute of an imported module or class is read with ``getattr``."""

    def applies(node: ast.Attribute, tree: ast.Module) -> bool:
        return isinstance(node.ctx, ast.Load) and _is_dotted(node.value, scopes.module_names(tree))

    for tree, node in sites(source, ast.Attribute, applies):
        replaced(tree, node, expression(f"getattr(_, {node.attr!r})", _=node.value))
        yield {MAIN: text(tree)}


def options(spelling: str) -> Transformation:
    """The keywords of a call are a variable first; ``spelling`` is ``display``, ``call`` or ``items``."""
    return partial(_of_keywords, spelling)


def _of_keywords(spelling: str, source: str) -> Iterator[Files]:
    def applies(node: ast.Call, tree: ast.Module) -> bool:
        is_free = not scopes.in_a_scope_of_its_own(tree, node) and _is_evaluated_once(tree, node)
        return bool(node.keywords) and all(one.arg for one in node.keywords) and is_free

    for tree, node in sites(source, ast.Call, applies):
        statement = scopes.statement_of(tree, node)
        given = [ast.Constant(one.arg) for one in node.keywords]
        values = [one.value for one in node.keywords]
        if spelling == "display":
            made = statements("opts = _", _=ast.Dict(list(given), values))
        elif spelling == "call":
            made = statements("opts = _", _=ast.Call(ast.Name("dict", ast.Load()), [], node.keywords))
        else:
            made = statements("opts = {}")
            for key, entry in zip(given, values, strict=True):
                made += statements("opts[_key] = _value", _key=key, _value=entry)
        node.keywords = [ast.keyword(None, ast.Name("opts", ast.Load()))]
        around = scopes.block(tree, statement)
        index = around.index(statement)
        around[index:index] = made
        yield {MAIN: text(tree)}


def star(source: str) -> Iterator[Files]:
    """The positional arguments of a call are a variable first."""

    def applies(node: ast.Call, tree: ast.Module) -> bool:
        is_free = not scopes.in_a_scope_of_its_own(tree, node) and _is_evaluated_once(tree, node)
        plain = bool(node.args) and not any(isinstance(one, ast.Starred) for one in node.args)
        return plain and is_free and ast.unparse(node.func) not in ("super", "isinstance", "hasattr", "getattr")

    for tree, node in sites(source, ast.Call, applies):
        statement = scopes.statement_of(tree, node)
        made = statements("args = _", _=ast.Tuple(node.args, ast.Load()))
        node.args = [ast.Starred(ast.Name("args", ast.Load()), ast.Load())]
        around = scopes.block(tree, statement)
        index = around.index(statement)
        around[index:index] = made
        yield {MAIN: text(tree)}


def _with(tree: ast.Module, definitions: str, imports: str) -> Files:
    if definitions:
        scopes.define(tree, definitions)
    return {MAIN: (f"{imports}\n" if imports else "") + text(tree)}


def _target(node: ast.Assign) -> str:
    target = node.targets[0]
    assert isinstance(target, ast.Name)
    return target.id


def _assigns_a_local(node: ast.Assign, tree: ast.Module) -> bool:
    is_name = len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    return is_name and scopes.owner(tree, node) is not None and not isinstance(node.value, ast.Constant)


def _is_a_value(node: ast.expr, tree: ast.Module) -> bool:
    if isinstance(node, ast.Constant) or scopes.owner(tree, node) is None:
        return False
    statement = scopes.statement_of(tree, node)
    if isinstance(statement, ast.Return):
        return statement.value is node
    return isinstance(statement, ast.Assign) and statement.value is node and isinstance(statement.targets[0], ast.Name)


def _reads_a_local(node: ast.Name, tree: ast.Module) -> bool:
    if not isinstance(node.ctx, ast.Load) or scopes.owner(tree, node) is None:
        return False
    return node.id in scopes.read([node], tree)


def _is_dotted(node: ast.expr, names: set[str]) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id in names


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _is_evaluated_once(tree: ast.Module, node: ast.expr) -> bool:
    """Whether ``node`` is evaluated once, when its statement starts."""
    statement = scopes.statement_of(tree, node)
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.While):
        return False
    is_conditional = (ast.IfExp, ast.BoolOp)
    return not any(isinstance(one, is_conditional) and node in ast.walk(one) for one in ast.walk(statement))
