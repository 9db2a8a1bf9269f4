"""How a file spells torch.distributed.checkpoint."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File

DCP = "torch.distributed.checkpoint"


def spell(name: str, node: cst.CSTNode, file: File) -> str:
    """``dcp.<name>``, by the file's own alias where it has one."""
    for local, target in file.aliases.items():
        if target == f"{DCP}.{name}" and local == name:
            return local
    for local, target in file.aliases.items():
        if target == DCP:
            return f"{local}.{name}"
    local = file.fresh(node, "dcp", "dist_cp")
    file.references.wanted_imports[local] = f"import {DCP} as {local}"
    return f"{local}.{name}"
