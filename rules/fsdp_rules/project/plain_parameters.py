"""Parameters of functions that are texts, numbers or paths, by what the function itself says of them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fsdp_rules.project.walking import walk

Function = ast.FunctionDef | ast.AsyncFunctionDef
#: What annotations call that, and what may stand around it.
PLAIN = frozenset({"str", "int", "float", "bool", "bytes", "Path", "PathLike", "Literal", "LiteralString"})
AROUND = frozenset({"Optional", "Union", "Annotated", "Final", "typing", "t", "pathlib", "os"})
#: Methods that texts have, and modules have not.
OF_TEXTS = frozenset(
    {"capitalize", "casefold", "endswith", "encode", "lower", "lstrip", "partition", "removeprefix", "removesuffix"}
    | {"rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper", "zfill"}
)
#: What compares the values of two objects, not which they are.
COMPARING = (ast.Eq, ast.NotEq, ast.In, ast.NotIn, ast.Lt, ast.LtE, ast.Gt, ast.GtE)
#: What joins the parts of a name or a path. A module may be printed, which is with blanks around it.
JOINS = "/_-."


def plain_parameters(node: Function) -> frozenset[str]:
    """The parameters of ``node`` that are annotated, preset or used as what is no module."""
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    names = [*positional, *arguments.kwonlyargs]
    presets = [None] * (len(positional) - len(arguments.defaults)) + [*arguments.defaults, *arguments.kw_defaults]
    inside = [one for statement in node.body for one in (statement, *walk(statement))]
    bound = {one.id for one in inside if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load)}
    used = {name for one in inside for name in _used(one)} - bound
    return frozenset(
        one.arg
        for one, preset in zip(names, presets, strict=True)
        if one.arg in used or _is_plain(preset) or (one.annotation is not None and _says_plain(one.annotation))
    )


def _says_plain(annotation: ast.expr) -> bool:
    """Whether ``annotation`` allows nothing but texts, numbers and paths."""
    match annotation:
        case ast.Constant(value=str() as text):
            try:
                return _says_plain(ast.parse(text, mode="eval").body)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                return False
        case ast.Subscript(value=of) if _last(of) == "Literal":
            return True
    names = {_last(one) for one in (annotation, *walk(annotation))} - {""}
    return bool(names & PLAIN) and names <= PLAIN | AROUND


def _last(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _is_plain(node: ast.AST | None) -> bool:
    match node:
        case ast.UnaryOp():
            return _is_plain(node.operand)
        case ast.Tuple() | ast.List() | ast.Set():
            return bool(node.elts) and all(map(_is_plain, node.elts))
        case ast.JoinedStr():
            return True
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes | int | float)


def _used(node: ast.AST) -> Iterator[str]:
    """The names that ``node`` uses as a text or a number."""
    match node:
        case ast.Compare(ops=[operator], left=left, comparators=[right]) if isinstance(operator, COMPARING):
            sides = (left, right)
            named = [one.id for one in sides if isinstance(one, ast.Name)]
            yield from named if any(map(_is_plain, sides)) else ()
        case ast.Attribute(value=ast.Name(id=name)) if node.attr in OF_TEXTS:
            yield name
        case ast.Subscript(slice=ast.Name(id=name)):
            yield name
        case ast.JoinedStr():
            yield from _joined(node)


def _joined(node: ast.JoinedStr) -> Iterator[str]:
    """The names that are a part of a name or a path that ``node`` forms."""
    for position, one in enumerate(node.values):
        if not isinstance(one, ast.FormattedValue) or not isinstance(one.value, ast.Name):
            continue
        before, after = _text(node, position - 1)[-1:], _text(node, position + 1)[:1]
        if one.format_spec is not None or (before and before in JOINS) or (after and after in JOINS):
            yield one.value.id


def _text(node: ast.JoinedStr, position: int) -> str:
    part = node.values[position] if 0 <= position < len(node.values) else None
    return part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else ""
