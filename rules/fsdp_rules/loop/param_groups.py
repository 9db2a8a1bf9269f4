"""Rule for parameter groups that are distinguished by the number of dimensions."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.parameters import sharded_parameter
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

ANSWERS = {
    cst.Equal: operator.eq,
    cst.NotEqual: operator.ne,
    cst.LessThan: operator.lt,
    cst.LessThanEqual: operator.le,
    cst.GreaterThan: operator.gt,
    cst.GreaterThanEqual: operator.ge,
}
#: How many a parameter may have; fully_shard takes no scalars.
DIMENSIONS = range(1, 7)


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

    def visit(self, node: cst.Attribute | cst.Call, file: File) -> Iterable[Diagnosis]:
        """List questions for the dimensions of a wrapped model's parameters."""
        parameter = _asked(node)
        if parameter is None or sharded_parameter(parameter, file) is Certainty.NO or is_summoned(node, file):
            return
        if _has_one_answer(node, file):
            return
        yield Diagnosis(
            node,
            Level.MANUAL,
            f"{file.code(node)} was 1 for every FSDP1 parameter, and is now the value of the full tensor",
            "Check the branch that no FSDP1 parameter took. To keep the numbers, give all parameters the settings of "
            "the 1-D group (often weight_decay=0). To get the groups you intended, keep the line.",
        )


def _has_one_answer(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` is compared with a number that tells one dimension from no other: ``p.ndim < 1``."""
    test = file.parent(node)
    if not isinstance(test, cst.Comparison) or test.left is not node or len(test.comparisons) != 1:
        return False
    answer, limit = ANSWERS.get(type(test.comparisons[0].operator)), test.comparisons[0].comparator
    if answer is None or not isinstance(limit, cst.Integer):
        return False
    return len({answer(number, limit.evaluated_value) for number in DIMENSIONS}) == 1


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
