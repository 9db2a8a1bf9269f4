"""Which states go to files of ``torch.save``, and which come from them."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.flowing import value_of
from fsdp_rules.project.flow import Certainty


def is_unpickled(state: cst.BaseExpression, file: File) -> bool:
    """Whether ``state`` may be what ``torch.load`` gave, or an entry of it."""
    return value_of(state, file).loaded is not Certainty.NO


def is_pickled(call: cst.Call, file: File) -> bool:
    """Whether ``torch.save`` gets the result of ``call``, by a name or inside a dictionary too."""
    outer = file.parent(call)
    while isinstance(outer, cst.DictElement | cst.Dict | cst.Arg):
        outer = file.parent(outer)
    if isinstance(outer, cst.Call):
        return file.resolved(outer.func) == "torch.save"
    if not isinstance(outer, cst.Assign) or len(outer.targets) != 1:
        return False
    target = outer.targets[0].target
    if not isinstance(target, cst.Name):
        return False
    return any(
        isinstance(taker, cst.Call) and file.resolved(taker.func) == "torch.save"
        for use in file.uses(target.value)
        if file.scope(use) == file.scope(target) and isinstance(argument := file.parent(use), cst.Arg)
        for taker in [file.parent(argument)]
    )
