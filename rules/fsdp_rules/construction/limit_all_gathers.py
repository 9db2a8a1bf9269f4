"""Rule for the argument ``limit_all_gathers``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level


class LimitAllGathers(ArgumentRule):
    """limit_all_gathers.

    FSDP2 always synchronises its streams so that memory is bounded without blocking the CPU thread. The argument is
    removed, and no number changes.
    """

    id = "FSDP111"
    name = "limit-all-gathers"
    arguments = ("limit_all_gathers",)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    return FSDP(model, limit_all_gathers=True)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    return fully_shard(model)
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Nothing is left to plan."""
        yield Diagnosis(
            value, Level.SAFE, "limit_all_gathers has no effect in FSDP2, which always limits its all-gathers"
        )
