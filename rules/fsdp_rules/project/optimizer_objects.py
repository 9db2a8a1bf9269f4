"""Optimizer classes of the tree whose parameter groups hold dtypes or devices, which torch's states refuse."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_CLASS = re.compile(rb"^[ \t]*class \w+\([^)]*(Optimizer|Adam\w*|SGD|Adagrad|RMSprop)\s*[,)]", re.MULTILINE)
_TORCH = re.compile(r"(bfloat|float|int|uint|complex|b?half|double|device|dtype)\w*$")


def holds_objects(data: bytes) -> bool:
    """Whether an optimizer that the source ``data`` defines has a ``torch.dtype`` or ``torch.device`` in its groups."""
    if (b"dtype" not in data and b"torch." not in data) or _CLASS.search(data) is None:
        return False
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and _is_optimizer(node))
    made = (node for cls in classes for node in cls.body if isinstance(node, ast.FunctionDef))
    return any(_keeps(node) for node in made if node.name == "__init__")


def _is_optimizer(cls: ast.ClassDef) -> bool:
    return _CLASS.search(f"class A({', '.join(map(ast.unparse, cls.bases))})".encode()) is not None


def _keeps(init: ast.FunctionDef) -> bool:
    """Whether the settings of the groups, a dictionary in ``init``, have an object of torch among them."""
    arguments = [*init.args.posonlyargs, *init.args.args]
    defaults: list[tuple[ast.arg, ast.expr | None]] = [
        *zip(reversed(arguments), reversed(init.args.defaults), strict=False),
        *zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True),
    ]
    objects = {one.arg for one, default in defaults if default is not None and _is_object(default)}
    objects |= {one.arg for one in (*arguments, *init.args.kwonlyargs) if one.annotation and _is_object(one.annotation)}
    return any(
        _is_object(value) or (isinstance(value, ast.Name) and value.id in objects)
        for node in ast.walk(init)
        for value in _entries(node)
    )


def _entries(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Dict):
        yield from node.values
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        yield from (one.value for one in node.keywords)


def _is_object(node: ast.expr) -> bool:
    """Whether ``node`` is a dtype or a device of torch, or such a class."""
    if isinstance(node, ast.BinOp):
        return _is_object(node.left) or _is_object(node.right)
    if isinstance(node, ast.Subscript):
        return _is_object(node.slice)
    text = ast.unparse(node.func if isinstance(node, ast.Call) else node)
    return text.startswith("torch.") and _TORCH.match(text.removeprefix("torch.")) is not None
