"""Rule for the argument ``sharding_strategy``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import brief, is_none
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level


class Strategy(ArgumentRule):
    """sharding_strategy.

    `FULL_SHARD` is FSDP2's default (both keep the root gathered after forward). `SHARD_GRAD_OP` is
    `reshard_after_forward=False`. `HYBRID_SHARD` and `_HYBRID_SHARD_ZERO2` shard inside a node and replicate between
    nodes: a two-dimensional mesh, nodes first. `NO_SHARD` is a mesh of size 1 in its shard dimension. A value that is
    only known at run time is passed to `fsdp_compat.shard`, which takes all five.
    """

    id = "FSDP102"
    name = "sharding-strategy"
    arguments = ("sharding_strategy",)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

def build(model):
    model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    return model
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    fully_shard(model, reshard_after_forward=False)
    return model
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Turn the strategy into ``reshard_after_forward`` and a kind of mesh."""
        known = self._known(value, file)
        if known is None:
            plan.helper.append(f"sharding_strategy={brief(file.code(value))} is only known at run time")
            yield Diagnosis(value, Level.REVIEW, "fsdp_compat.shard resolves the strategy at run time")
            return
        plan.consume_value(value, file)
        if known in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"):
            plan.reshard_after_forward = False
        if known in ("HYBRID_SHARD", "_HYBRID_SHARD_ZERO2") and plan.mesh != "given":
            plan.mesh = "hybrid"
        if known == "NO_SHARD":
            if "device_mesh" in plan.arguments:
                plan.helper.append("NO_SHARD on a custom mesh")
            plan.mesh = "no_shard"
        yield Diagnosis(value, Level.SAFE, MEANING[known])

    def _known(self, value: cst.BaseExpression, file: File) -> str | None:
        value = file.value(value)
        if is_none(value):
            return "FULL_SHARD"
        if isinstance(value, cst.Subscript) and file.fsdp1(value.value) == "ShardingStrategy":
            index = value.slice[0].slice
            inner = index.value if isinstance(index, cst.Index) else None
            name = inner.evaluated_value if isinstance(inner, cst.SimpleString) else None
            return name if isinstance(name, str) and name in MEANING else None
        known = file.fsdp1(value)
        if known is None or not known.startswith("ShardingStrategy."):
            return None
        name = known.partition(".")[2]
        return name if name in MEANING else None


MEANING = {
    "FULL_SHARD": "FULL_SHARD is fully_shard's default",
    "SHARD_GRAD_OP": "SHARD_GRAD_OP is reshard_after_forward=False",
    "HYBRID_SHARD": "HYBRID_SHARD is a (replicate, shard) mesh",
    "_HYBRID_SHARD_ZERO2": "_HYBRID_SHARD_ZERO2 is a (replicate, shard) mesh with reshard_after_forward=False",
    "NO_SHARD": "NO_SHARD is a mesh of size 1 in its shard dimension",
}
