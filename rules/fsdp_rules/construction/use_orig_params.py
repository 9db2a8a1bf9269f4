"""Rule for the argument ``use_orig_params``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level


class UseOrigParams(ArgumentRule):
    """use_orig_params.

    FSDP2 always keeps the original parameters, so the argument is removed. With `use_orig_params=False` the optimizer
    had one flat parameter per unit; it now has each parameter under its own name. Element-wise optimizers (SGD, Adam,
    AdamW) compute the same numbers.
    """

    id = "FSDP112"
    name = "use-orig-params"
    arguments = ("use_orig_params",)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    return FSDP(model, use_orig_params=True)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    return fully_shard(model)
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Nothing is left to plan."""
        yield Diagnosis(value, Level.SAFE, "FSDP2 always keeps the original parameters")
