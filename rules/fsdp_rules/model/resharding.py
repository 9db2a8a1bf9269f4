"""The loop that reshards every unit of a model."""

from __future__ import annotations

from textwrap import indent

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.model.flowing import known_as
from fsdp_rules.verdict.diagnosis import Build, Edit, InsertBefore


def reshard_before(statement: cst.CSTNode, model: cst.BaseExpression, file: File) -> Edit:
    """The edit that reshards every unit of ``model`` in front of ``statement``."""
    return InsertBefore(statement, reshard_loop(statement, model, file))


def reshard_loop(statement: cst.CSTNode, model: cst.BaseExpression, file: File) -> Build:
    """The text of that loop, with names that are free around ``statement``.

    It asks first where ``model`` is an object without modules in other runs, as an attribute of any name may be.
    """
    module = file.ref("torch.distributed.fsdp.FSDPModule")
    unit = file.fresh(statement, "unit", "fsdp_unit")
    asked = file.ref("torch.nn.Module") if known_as("joined", model, file) else ""

    def loop(code: Code) -> str:
        text = f"for {unit} in {code(model)}.modules():\n    if isinstance({unit}, {module}):\n        {unit}.reshard()"
        return f"if isinstance({code(model)}, {asked}):\n{indent(text, '    ')}" if asked else text

    return loop
