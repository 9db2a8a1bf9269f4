"""Reads of parameters that give the same whether FSDP2 has them gathered or sharded."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import names_in
from fsdp_rules.file.file import File
from fsdp_rules.file.reads import is_read
from fsdp_rules.model.wrapping import PASSING

#: What is the same of a gathered parameter.
ASKED = frozenset(
    {
        *("device", "dim", "dtype", "element_size", "is_cpu", "is_cuda", "is_floating_point", "is_leaf", "itemsize"),
        *("nelement", "ndim", "numel", "requires_grad", "shape", "size"),
    }
)
#: Functions that say how many they are given, and those that are given what is asked of each.
COUNTS = frozenset({"len"})
#: What values may pass through on their way; more is not followed.
DEPTH = 6


def is_alike(given: cst.CSTNode, file: File, depth: int = DEPTH) -> bool:
    """Whether all that is done with ``given``, a parameter or several, is the same of gathered and sharded ones."""
    parent = file.parent(given)
    if depth == 0 or parent is None:
        return False
    if isinstance(parent, cst.Attribute) and parent.value is given:
        around = file.parent(parent)
        return parent.attr.value in ASKED and not isinstance(around, cst.AssignTarget | cst.AugAssign | cst.Del)
    if isinstance(parent, cst.Arg):
        call = file.parent(parent)
        name = call.func.value if isinstance(call, cst.Call) and isinstance(call.func, cst.Name) else ""
        return name in COUNTS or (call is not None and name in {*PASSING, "next"} and is_alike(call, file, depth - 1))
    if isinstance(parent, cst.For | cst.CompFor) and parent.iter is given:
        place = parent if isinstance(parent, cst.For) else file.parent(parent)
        return place is not None and _are_alike(_parameters_in(parent), place, file, depth)
    if isinstance(parent, cst.ListComp | cst.GeneratorExp | cst.SetComp) and parent.elt is given:
        return is_alike(parent, file, depth - 1)
    if isinstance(parent, cst.Assign) and parent.value is given and len(parent.targets) == 1:
        target = parent.targets[0].target
        return isinstance(target, cst.Name) and _are_alike([target], file.function(parent) or file.module, file, depth)
    return False


def _parameters_in(loop: cst.For | cst.CompFor) -> list[cst.Name]:
    """The names in the target of ``loop`` that stand for parameters: a name or a number stands before its parameter."""
    names = names_in(loop.target)
    call = loop.iter
    zips = isinstance(call, cst.Call) and isinstance(call.func, cst.Name) and call.func.value == "zip"
    return names if zips else names[-1:]


def _are_alike(names: list[cst.Name], place: cst.CSTNode, file: File, depth: int) -> bool:
    """Whether every use of ``names`` in ``place`` is."""
    known = {name.value for name in names}
    inside = file.inside(place, cst.Name)
    uses = (use for use in inside if use.value in known and use not in names and is_read(use, file.layout))
    return all(is_alike(use, file, depth - 1) for use in uses)
