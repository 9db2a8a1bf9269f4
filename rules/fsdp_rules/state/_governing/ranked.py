"""Whether a state that is loaded may be another one on every rank."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import last_name, names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.project.flags import BY_RANK
from fsdp_rules.project.rank_texts import RANK

DEPTH = 6


def is_of_a_rank(state: cst.BaseExpression, file: File) -> bool:
    """Whether ``state``, or the path that it is read from, is computed from the number of the process."""
    return _is_ranked(state, file, set(), DEPTH)


def may_be_of_a_rank(state: cst.BaseExpression, file: File) -> bool:
    """Whether a function of the project gives the path of ``state``, or is given it, and forms it from a rank."""
    pending: list[cst.CSTNode] = [state]
    seen: set[cst.CSTNode] = set()
    function = file.function(state)
    parameters = set() if function is None else {entry.name.value for entry in file.inside(function.params, cst.Param)}
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        called = [node, *file.inside(node, cst.Call)] if isinstance(node, cst.Call) else file.inside(node, cst.Call)
        if any(
            isinstance(call, cst.Call) and f"{BY_RANK}{last_name(call.func)}" in file.project.flags for call in called
        ):
            return True
        for name in names_in(node):
            if (
                function is not None
                and name.value in parameters
                and _own_name(function, file) in file.project.given_rank
            ):
                return True
            found = file.bindings.found.get((file.scope(name), name.value), ())
            pending += [binding.value for binding in found if binding.value is not None]
    return False


def _own_name(function: cst.FunctionDef, file: File) -> str:
    """What ``function`` is called by: its name, or that of the class that it initialises."""
    if function.name.value != "__init__":
        return function.name.value
    return next((one.name.value for one in file.ancestors(function) if isinstance(one, cst.ClassDef)), "")


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
