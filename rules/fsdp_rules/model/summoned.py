"""Whether a place finds full parameters, which ``summon_full_params`` has gathered."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.reaching import definitions

SUMMON = "summon_full_params"


def is_summoned(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` stands in a ``with`` that gathers full parameters, by a name that holds the context too."""
    return SUMMON in file.text and any(
        isinstance(ancestor, cst.With) and any(_summons(item.item, file) for item in ancestor.items)
        for ancestor in file.ancestors(node)
    )


def _summons(item: cst.BaseExpression, file: File) -> bool:
    if SUMMON in file.code(item):
        return True
    name = item.func if isinstance(item, cst.Call) else item
    if not isinstance(name, cst.Name):
        return False
    return any(SUMMON in file.code(made) for made in definitions(name, file) or () if isinstance(made, cst.Assign))
