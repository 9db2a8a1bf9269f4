"""Where a wrap is given a process group that its own function makes of some of the ranks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.walking import children, walk

#: What a file has that makes a group.
MAKES = re.compile(rb"\bnew_(sub)?group")
#: Functions of torch.distributed that only make parts of a group.
_PARTS = frozenset({"new_subgroups", "new_subgroups_by_enumeration"})
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)


def subgroup_values(tree: ast.Module) -> frozenset[tuple[int, int]]:
    """The lines and columns of the calls that make subgroups, and of the values of ``process_group=`` that are some.

    A group is one where its ranks are written as a list, a comprehension or a range that does not begin at 0, and
    where no other value is given to its name. Ranks that are only known at run time may be all ranks. A file without
    ``MAKES`` need not be asked.
    """
    scopes: list[ast.AST] = [tree, *(node for node in walk(tree) if isinstance(node, _Function))]
    return frozenset(place for scope in scopes for place in _in_scope(list(_own(scope))))


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of ``scope`` without those of the functions in it."""
    for child in children(scope):
        if not isinstance(child, _Function):
            yield child
            yield from _own(child)


def _in_scope(nodes: list[ast.AST]) -> Iterator[tuple[int, int]]:
    given: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                    given.setdefault(text_of(name) or "", []).append(node.value)
    for node in nodes:
        if isinstance(node, ast.Call) and _is_subgroup(node, given):
            yield node.lineno, node.col_offset
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "process_group" and _is_subgroup(keyword.value, given):
                yield keyword.value.lineno, keyword.value.col_offset


def _is_subgroup(value: ast.expr, given: dict[str, list[ast.expr]], depth: int = 3) -> bool:
    while isinstance(value, ast.Subscript):
        value = value.value
    if isinstance(value, ast.ListComp):
        value = value.elt
    if isinstance(value, ast.Call):
        name = (text_of(value.func) or "").rpartition(".")[2]
        return name in _PARTS or (name == "new_group" and any(_are_some(ranks, given) for ranks in _ranks(value)))
    values = given.get(text_of(value) or "", ())
    return depth > 0 and bool(values) and all(_is_subgroup(one, given, depth - 1) for one in values)


def _ranks(call: ast.Call) -> Iterable[ast.expr]:
    return [*call.args[:1], *(keyword.value for keyword in call.keywords if keyword.arg == "ranks")]


def _are_some(ranks: ast.expr, given: dict[str, list[ast.expr]], depth: int = 2) -> bool:
    if isinstance(ranks, ast.Call) and text_of(ranks.func) == "list" and len(ranks.args) == 1:
        ranks = ranks.args[0]
    if isinstance(ranks, ast.Call) and text_of(ranks.func) == "range":
        first = ranks.args[0] if len(ranks.args) > 1 else None
        return first is not None and not (isinstance(first, ast.Constant) and first.value == 0 and len(ranks.args) == 2)
    if isinstance(ranks, ast.List | ast.ListComp):
        return not isinstance(ranks, ast.ListComp) or _filters(ranks)
    values = given.get(text_of(ranks) or "", ())
    return depth > 0 and bool(values) and all(_are_some(one, given, depth - 1) for one in values)


def _filters(ranks: ast.ListComp) -> bool:
    """Whether a comprehension leaves ranks out or computes them, so that it is not every rank as it is."""
    return any(loop.ifs for loop in ranks.generators) or not isinstance(ranks.elt, ast.Name)
