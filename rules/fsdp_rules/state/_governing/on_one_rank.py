"""Whether rank 0 alone reaches a call: by a test around it, or because all calls of its function are behind one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.file.rank_tests import RANK_ABOVE, RANK_ZERO, is_under_rank_zero

#: What people call a question for rank 0.
MAIN = re.compile(r"[\w.]*\bis_(main|master|rank_zero|rank0|chief)(_process|_rank)?(\(\))?")
#: How many functions, each called by the next, are followed.
DEPTH = 4


@dataclass(frozen=True)
class _Use:
    """A place that names a function: in which function, whether it calls it, and whether on rank 0 alone."""

    function: str
    is_called: bool
    is_guarded: bool


@once
def is_on_rank_zero_alone(call: cst.Call, file: File) -> bool:
    """Whether rank 0 alone reaches ``call``, for all calls of its function that the tree has."""
    if is_under_rank_zero(call, file):
        return True
    function = file.function(call)
    return function is not None and _is_guarded(function.name.value, file, DEPTH)


def _is_guarded(name: str, file: File, depth: int) -> bool:
    """Whether the tree calls a function called ``name``, and each time on rank 0 alone."""
    if depth == 0 or name.startswith("__"):
        return False
    sources = {**file.project.sources, file.path: file.text.encode()}
    trees = [ast.parse(data) for data in sources.values() if name.encode() in data]
    uses = [use for tree in trees for use in _uses(tree, name, _foreign(tree, file))]
    return bool(uses) and all(
        use.is_called and (use.is_guarded or (bool(use.function) and _is_guarded(use.function, file, depth - 1)))
        for use in uses
    )


def _foreign(tree: ast.Module, file: File) -> frozenset[str]:
    """What ``tree`` imports of other modules than that of ``file``."""
    own = PurePosixPath(file.path).stem
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias for node in imports for alias in node.names]
    return frozenset(
        alias.asname or alias.name.partition(".")[0] for alias in names if alias.name.rpartition(".")[2] != own
    )


def _uses(
    node: ast.AST,
    name: str,
    foreign: frozenset[str],
    function: str = "",
    guarded: bool = False,
    called: bool = False,
) -> Iterator[_Use]:
    """The places in ``node`` that name a function called ``name``; imports and ``foreign.name`` do not count."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in foreign:
        return
    if (node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else "") == name:
        yield _Use(function, called, guarded)
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        function, guarded = node.name, False
    for field, value in ast.iter_fields(node):
        inside = guarded or (field == "body" and isinstance(node, ast.If | ast.IfExp) and _is_for_zero(node.test))
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, ast.AST):
                yield from _uses(one, name, foreign, function, inside, isinstance(node, ast.Call) and one is node.func)
            inside = inside or (isinstance(one, ast.If) and _sends_others_away(one))


def _is_for_zero(test: ast.expr) -> bool:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(map(_is_for_zero, test.values))
    text = ast.unparse(test)
    return RANK_ZERO.fullmatch(text) is not None or MAIN.fullmatch(text) is not None


def _sends_others_away(test: ast.If) -> bool:
    text = ast.unparse(test.test)
    negated = text.removeprefix("not ")
    above = RANK_ABOVE.fullmatch(text) or (negated != text and MAIN.fullmatch(negated))
    return bool(above) and not test.orelse and isinstance(test.body[-1], ast.Return)
