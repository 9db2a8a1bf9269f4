"""Names that a loop binds to the units of a model, one after the other."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import calls_plainly
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP

UNITS = f"{FSDP}.fsdp_modules"


def is_a_unit(receiver: cst.BaseExpression, file: File) -> bool:
    """Whether ``receiver`` is the name that a loop over ``FSDP.fsdp_modules(...)`` binds."""
    if not isinstance(receiver, cst.Name):
        return False
    for ancestor in file.ancestors(receiver):
        clause = getattr(ancestor, "for_in", None) or (ancestor if isinstance(ancestor, cst.For) else None)
        if isinstance(clause, cst.For | cst.CompFor) and receiver.value in (bound := _bound(clause, file)):
            return any(file.fsdp1(call.func) == UNITS for call in file.inside(bound[receiver.value], cst.Call))
    return False


def _bound(clause: cst.For | cst.CompFor, file: File) -> dict[str, cst.BaseExpression]:
    """What the one name of ``clause`` runs over, without the numbers of an ``enumerate``."""
    target: cst.BaseExpression = clause.target
    over = clause.iter
    if isinstance(target, cst.Tuple) and isinstance(over, cst.Call) and calls_plainly(over, ("enumerate",), 1):
        target, over = target.elements[-1].value, over.args[0].value
    return {target.value: file.value(over)} if isinstance(target, cst.Name) else {}
