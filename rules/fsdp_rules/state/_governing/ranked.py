"""Whether a state that is loaded may be another one on every rank."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.expressions import names_in
from fsdp_rules.file.file import File, dotted

#: What people call the number of a process, and of its place among others that hold parts of a model.
RANK = re.compile(r"(^|_)rank(_id)?(_|$)|get_rank$|^local_rank$", re.IGNORECASE)
DEPTH = 6


def is_of_a_rank(state: cst.BaseExpression, file: File) -> bool:
    """Whether ``state``, or the path that it is read from, is computed from the number of the process."""
    return _is_ranked(state, file, set(), DEPTH)


def _is_ranked(node: cst.CSTNode, file: File, seen: set[cst.CSTNode], depth: int) -> bool:
    if depth == 0 or node in seen:
        return False
    seen.add(node)
    for name in [*names_in(node), *file.inside(node, cst.Attribute)]:
        last = (dotted(name) or "").rpartition(".")[2]
        if RANK.search(last) and not _is_keyword(name, file):
            return True
    values = [
        binding.value
        for name in names_in(node)
        for binding in file.bindings.found.get((file.scope(name), name.value), ())
        if binding.value is not None
    ]
    # A path may come from a method or a function of the same file.
    called = {(dotted(call.func) or "").rpartition(".")[2] for call in file.inside(node, cst.Call)}
    values += [
        returned.value
        for function in file.nodes(cst.FunctionDef)
        if function.name.value in called
        for returned in file.inside(function, cst.Return)
        if returned.value is not None
    ]
    return any(_is_ranked(value, file, seen, depth - 1) for value in values)


def _is_keyword(name: cst.CSTNode, file: File) -> bool:
    """Whether ``name`` stands in a test, as in ``state if rank == 0 else None``, or places tensors on a device."""
    for ancestor in file.ancestors(name):
        if isinstance(ancestor, cst.Comparison):
            return True
        if isinstance(ancestor, cst.Arg) and ancestor.keyword is not None:
            return ancestor.keyword.value == "map_location"
        if isinstance(ancestor, cst.BaseStatement):
            return False
    return False
