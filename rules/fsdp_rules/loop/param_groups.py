"""Rule for parameter groups that are distinguished by the number of dimensions."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.parameters import sharded_parameter
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class ParameterGroups(Rule):
    """Parameter groups by ndim, on a sharded model.

    FSDP1's sharded parameters are all 1-D, so a test like `p.ndim < 2` put all of them in the group of the biases.
    FSDP2's keep their shapes, so the matrices get weight decay: this is the intended behaviour, but the numbers change.
    Groups built before wrapping, or inside `summon_full_params`, do not change.
    """

    id = "FSDP213"
    name = "parameter-groups"
    visits = (cst.Attribute, cst.Call)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    model = FSDP(model, use_orig_params=True)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    return model, matrices
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    fully_shard(model)
    # TODO(fsdp-migrate FSDP213): p.ndim was 1 for every FSDP1 parameter, and is now the value of the full tensor
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    return model, matrices
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """List questions for the dimensions of a wrapped model's parameters."""
        parameter = _asked(node)
        if parameter is None or sharded_parameter(parameter, file) is Certainty.NO or is_summoned(node, file):
            return
        yield Diagnosis(
            node,
            Level.MANUAL,
            f"{file.code(node)} was 1 for every FSDP1 parameter, and is now the value of the full tensor",
            "FSDP1 put every parameter in the 1-D group. To keep the numbers, give all of them that group's "
            "settings (often weight_decay=0); to get the groups you meant, keep the line.",
        )


def _asked(node: cst.CSTNode) -> cst.BaseExpression | None:
    """``p`` in ``p.ndim``, ``p.dim()``, ``p.ndimension()`` and ``len(p.shape)``."""
    if isinstance(node, cst.Attribute):
        return node.value if node.attr.value == "ndim" else None
    if not isinstance(node, cst.Call):
        return None
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in ("dim", "ndimension"):
        return node.func.value
    if isinstance(node.func, cst.Name) and node.func.value == "len" and len(node.args) == 1:
        shape = node.args[0].value
        shape = shape.func if isinstance(shape, cst.Call) else shape
        if isinstance(shape, cst.Attribute) and shape.attr.value in ("shape", "size"):
            return shape.value
    return None
