"""How a file spells torch.distributed.checkpoint."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File

DCP = "torch.distributed.checkpoint"


def spell(name: str, node: cst.CSTNode, file: File) -> str:
    """``dcp.<name>``, by the file's own alias where it has one."""
    means_another = file.references.means_another
    aliases = {local: target for local, target in file.aliases.items() if not means_another(local, target)}
    if aliases.get(name) == f"{DCP}.{name}":
        return name
    for local, target in aliases.items():
        if target == DCP:
            return f"{local}.{name}"
    local = file.fresh(node, *(one for one in ("dcp", "dist_cp") if not means_another(one, DCP)), "torch_dcp")
    file.references.wanted_imports[local] = f"import {DCP} as {local}"
    return f"{local}.{name}"


def reads_in_place(call: cst.Call, file: File) -> bool:
    """Whether ``call`` reads a folder into the tensors of a state that it is given."""
    module, _, function = (file.resolved(call.func) or "").rpartition(".")
    return module in (DCP, f"{DCP}.optimizer", f"{DCP}.state_dict_loader") and function.startswith("load")
