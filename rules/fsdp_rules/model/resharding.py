"""The loop that reshards every unit of a model."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Build, Edit, InsertBefore


def reshard_before(statement: cst.CSTNode, model: cst.BaseExpression, file: File) -> Edit:
    """The edit that reshards every unit of ``model`` in front of ``statement``."""
    return InsertBefore(statement, reshard_loop(statement, model, file))


def reshard_loop(statement: cst.CSTNode, model: cst.BaseExpression, file: File) -> Build:
    """The text of that loop, with names that are free around ``statement``."""
    module = file.ref("torch.distributed.fsdp.FSDPModule")
    unit = file.fresh(statement, "unit", "fsdp_unit")
    return lambda code: (
        f"for {unit} in {code(model)}.modules():\n    if isinstance({unit}, {module}):\n        {unit}.reshard()"
    )
