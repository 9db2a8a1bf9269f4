"""Whether a place finds full parameters, which ``summon_full_params`` has gathered."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File

SUMMON = "summon_full_params"


def is_summoned(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` stands in a ``with`` that gathers full parameters."""
    return any(
        isinstance(ancestor, cst.With) and any(SUMMON in file.code(item.item) for item in ancestor.items)
        for ancestor in file.ancestors(node)
    )
