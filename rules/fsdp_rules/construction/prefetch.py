"""Rule for the arguments ``forward_prefetch`` and ``backward_prefetch``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import is_none, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

BY_HAND = "if a profile shows a gap, call set_modules_to_forward_prefetch([following]) on each unit"


class Prefetch(ArgumentRule):
    """backward_prefetch and forward_prefetch.

    FSDP2 prefetches one unit ahead in backward, as `BackwardPrefetch.BACKWARD_PRE` (FSDP1's default) does.
    `forward_prefetch=True` with a wrap policy becomes a chain of `set_modules_to_forward_prefetch` over the units, in
    the order in which the model defines them (FSDP1 used the order in which they first ran). The chain must not contain
    a unit that some forward skips: its next forward would use the outdated parameters. If activations are recomputed,
    no chain is written, because units inside checkpoints would also gather the next one during recomputation. These
    arguments affect memory use and overlap of communication, never numbers. All other prefetch arguments are removed.
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
        if literal_bool(file.value(value)) is False or file.fsdp1(file.value(value)) == "BackwardPrefetch.BACKWARD_PRE":
            yield Diagnosis(value, Level.SAFE, "FSDP2 prefetches in backward by default, and not in forward")
            return
        if (
            "auto_wrap_policy" in plan.arguments
            and plan.arguments.get("forward_prefetch") is value
            and not is_none(value)
        ):
            yield self._ahead(value, plan, file)
            return
        yield Diagnosis(
            value,
            Level.INFO,
            f"the prefetch setting {file.code(value)} is removed (it affects speed and memory, not numbers)",
            "if a profile shows a gap, call set_modules_to_forward_prefetch or set_modules_to_backward_prefetch",
        )

    def _ahead(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Diagnosis:
        """The verdict on ``forward_prefetch`` where a policy makes units."""
        given = file.code(value)
        if "recomputes" in file.project.flags:
            message = (
                f"forward_prefetch={given} is removed: during recomputation it would gather the next unit for nothing"
            )
            return Diagnosis(value, Level.REVIEW, message, BY_HAND)
        if literal_bool(file.value(value)) is not True:
            message = f"forward_prefetch={given} is only known at run time: units do not prefetch in forward"
            return Diagnosis(value, Level.REVIEW, message, BY_HAND)
        plan.prefetches = True
        return Diagnosis(value, Level.SAFE, "each unit prefetches the next one, set by set_modules_to_forward_prefetch")
