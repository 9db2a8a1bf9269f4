"""Rule for the arguments ``ignored_modules``, ``ignored_states`` and ``ignored_parameters``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import elements, is_none
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level


class Ignored(ArgumentRule):
    """ignored_modules and ignored_states.

    `None` or an empty list is removed. Otherwise `fsdp_compat.shard` passes their parameters to every `fully_shard`
    call as `ignored_params` and does not move their buffers. Ignored parameters are plain tensors next to sharded ones,
    so gradient clipping uses `fsdp_compat.clip_grad_norm_`. `ignored_parameters` is the old name of `ignored_states`.
    """

    id = "FSDP108"
    name = "ignored-modules"
    moves_together = True
    arguments = ("ignored_modules", "ignored_states", "ignored_parameters")
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    model = FSDP(model, ignored_modules=[model.frozen])
    return model
"""
    after = """
import fsdp_compat

def build(model):
    model = fsdp_compat.shard(model, ignored_modules=[model.frozen])
    return model
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Drop what ignores nothing, leave the rest to the helper."""
        found = file.value(value)
        if is_none(found) or elements(found) == []:
            return
        if "ignored_parameters" in plan.arguments:
            keyword = next((argument.keyword for argument in plan.call.args if argument.value is value), None)
            if keyword is None:
                yield Diagnosis(
                    value,
                    Level.MANUAL,
                    "ignored_parameters was removed from FSDP1 before torch 2.13",
                    "pass the parameters as ignored_states, then run this tool again",
                )
                return
            plan.helper_edits.append(Replace(keyword, lambda code: "ignored_states"))
        plan.helper.append("ignored parameters need fsdp_compat.shard")
        yield Diagnosis(
            value, Level.REVIEW, "fsdp_compat.shard passes these as ignored_params and does not move their buffers"
        )
