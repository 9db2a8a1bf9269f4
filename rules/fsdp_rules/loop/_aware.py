"""Code that handles DTensors itself, judged place by place: what one line does says nothing of the next."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.ancestors import branches
from fsdp_rules.file.expressions import names_in
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import leaves

AWARE = re.compile(r"\bDTensor\b|\bto_local\b|\bfull_tensor\b")
#: Methods that put what they are given into a list.
_COLLECTS = frozenset({"append", "add", "extend"})
#: How many names, one for what another holds, are followed.
_DEPTH = 3


def is_aware(place: cst.CSTNode, file: File, depth: int = _DEPTH) -> bool:
    """Whether the tensor that ``place`` reads is made a plain one, or asked for its class, where it is read or used."""
    if AWARE.search(_around(place, file)) or any(AWARE.search(file.code(one)) for one in _tests(place, file)):
        return True
    uses = _uses(place, file) if depth else []
    return bool(uses) and all(is_aware(use, file, depth - 1) for use in uses)


def is_left_out(place: cst.CSTNode, file: File, depth: int = _DEPTH) -> bool:
    """Whether a test above that only leaves for DTensors lets ``place``, or what it is kept as, see plain tensors."""
    uses = _uses(place, file) if depth else []
    return any(_only_leaves(one, file) for one in _tests(place, file)) or any(
        is_left_out(use, file, depth - 1) for use in uses
    )


def _only_leaves(test: cst.CSTNode, file: File) -> bool:
    choice = file.parent(test)
    if not isinstance(choice, cst.If) or not AWARE.search(file.code(test)) or len(choice.body.body) != 1:
        return False
    is_negated = any(isinstance(one.operator, cst.Not) for one in file.inside(test, cst.UnaryOperation))
    return not is_negated and leaves(choice.body)


def _uses(place: cst.CSTNode, file: File) -> list[cst.Name]:
    """Where the tensor that ``place`` reads is used later, by the name that it is kept as."""
    kept = _kept_as(place, file)
    return [] if kept is None else [use for use in file.uses(kept) if _is_beside(use, place, file)]


def _around(place: cst.CSTNode, file: File) -> str:
    """The text of the statement of ``place``; of one with a body its head, as far as ``place`` is in it."""
    statement = file.statement(place)
    if not isinstance(statement, cst.BaseCompoundStatement):
        return file.code(statement)
    return next((file.code(child) for owner, child in branches(place, file) if owner is statement), "")


def _tests(place: cst.CSTNode, file: File) -> Iterator[cst.CSTNode]:
    """What is asked around ``place`` and above it in its function, and what its name is given there."""
    names = {name.value for name in names_in(place)}
    for owner, child in branches(place, file):
        if isinstance(owner, cst.FunctionDef | cst.Lambda):
            return
        if isinstance(owner, cst.If | cst.IfExp | cst.While) and child is not owner.test:
            yield owner.test
        if not isinstance(child, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            continue
        for above in file.block(child):
            if above is child:
                break
            if isinstance(above, cst.If):
                yield above.test
            elif isinstance(above, cst.Assign) and any(file.code(one.target) in names for one in above.targets):
                yield above.value


def _kept_as(place: cst.CSTNode, file: File) -> str | None:
    """The name under which the tensor that ``place`` reads is used later: assigned, collected, or run over."""
    for owner, child in branches(place, file):
        if isinstance(owner, cst.For | cst.CompFor) and child is owner.iter:
            return owner.target.value if isinstance(owner.target, cst.Name) else None
        if isinstance(owner, cst.Call) and child is not owner.func:
            func = owner.func
            is_list = isinstance(func, cst.Attribute) and func.attr.value in _COLLECTS
            owned = func.value if is_list and isinstance(func, cst.Attribute) else None
            return owned.value if isinstance(owned, cst.Name) else None
        if isinstance(owner, cst.Assign):
            target = owner.targets[0].target
            return target.value if isinstance(target, cst.Name) else None
        if isinstance(owner, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            return None
    return None


def _is_beside(use: cst.Name, place: cst.CSTNode, file: File) -> bool:
    """Whether ``use`` is in the function of ``place`` and not in the statement that keeps the tensor."""
    if file.function(use) is not file.function(place) or use in file.ancestors(place):
        return False
    own = file.statement(use)
    return own is not file.statement(place) or isinstance(own, cst.BaseCompoundStatement)
