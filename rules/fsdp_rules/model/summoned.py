"""Whether a place finds full parameters, which ``summon_full_params`` has gathered."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.reaching import definitions
from fsdp_rules.model.flowing import gathers_in_function

SUMMON = "summon_full_params"


def is_summoned(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` stands in a ``with`` that gathers full parameters, also by a name or a function."""
    return (SUMMON in file.text or file.path in file.project.values.gathering) and any(
        isinstance(ancestor, cst.With) and any(_summons(item.item, file) for item in ancestor.items)
        for ancestor in file.ancestors(node)
    )


def _summons(item: cst.BaseExpression, file: File) -> bool:
    if SUMMON in file.code(item) or gathers_in_function(item, file):
        return True
    name = item.func if isinstance(item, cst.Call) else item
    if not isinstance(name, cst.Name):
        return False
    return any(SUMMON in file.code(made) for made in definitions(name, file) or () if isinstance(made, cst.Assign))
