"""Rule for the arguments ``forward_prefetch`` and ``backward_prefetch``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level


class Prefetch(ArgumentRule):
    """backward_prefetch and forward_prefetch.

    FSDP2 prefetches one unit ahead in backward, as `BackwardPrefetch.BACKWARD_PRE` (FSDP1's default) does. Explicit
    schedules use `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch`. The arguments change when
    memory is used and how communication overlaps, never a number, and are removed.
    """

    id = "FSDP113"
    name = "prefetch"
    arguments = ("backward_prefetch", "forward_prefetch")
    before = """
from torch.distributed.fsdp import BackwardPrefetch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    return FSDP(model, backward_prefetch=BackwardPrefetch.BACKWARD_POST)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    return fully_shard(model)
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Nothing is left to plan; say what to do where speed or memory was tuned."""
        if literal_bool(value) is False or file.fsdp1(file.value(value)) == "BackwardPrefetch.BACKWARD_PRE":
            yield Diagnosis(value, Level.SAFE, "FSDP2 prefetches in backward by default, and not in forward")
            return
        yield Diagnosis(
            value,
            Level.INFO,
            f"the prefetch setting {file.code(value)} is removed (it affects speed and memory, not numbers)",
            "if a profile shows a gap, call set_modules_to_forward_prefetch or set_modules_to_backward_prefetch",
        )
