"""Rule for the arguments ``ignored_modules``, ``ignored_states`` and ``ignored_parameters``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import brief, calls_plainly, elements, is_none, last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.wrap_given import IGNORED_PARAMS
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level


class Ignored(ArgumentRule):
    """ignored_modules and ignored_states.

    `None` or an empty list is removed. Otherwise, if the project requires torch 2.7, their parameters become the
    `ignored_params` of every `fully_shard` call, and ignored modules never become units. With an older torch, a policy
    that counts parameters, or a model on the meta device, `fsdp_compat.shard` is used. Ignored parameters are plain
    tensors next to sharded ones, so gradient clipping uses `fsdp_compat.clip_grad_norm_`. `ignored_parameters` is the
    old name of `ignored_states`.
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
        """Drop what ignores nothing, and plan the rest."""
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
        plan.ignored, plan.ignores_modules = value, "ignored_modules" in plan.arguments
        if plan.arguments.get("ignored_states") is value and not self._are_parameters(value, file):
            plan.helper.append(f"{brief(file.code(value))} may hold modules or parameters")
        if file.settings.torch < IGNORED_PARAMS:
            plan.helper.append("fully_shard has ignored_params since torch 2.7")
        if plan.ignores_modules:
            plan.assumptions.append("assumes buffers of ignored modules may move to the model's device")
        yield Diagnosis(value, Level.SAFE, "these parameters become ignored_params of fully_shard")

    def _are_parameters(self, value: cst.BaseExpression, file: File) -> bool:
        """Whether ``value`` comes of the ``parameters()`` of a module, all or some of them."""
        found = file.value(value)
        while isinstance(found, cst.Call) and calls_plainly(found, ("list", "set", "tuple"), 1):
            found = file.value(found.args[0].value)
        listed = found.for_in.iter if isinstance(found, cst.ListComp | cst.SetComp | cst.GeneratorExp) else found
        return isinstance(listed, cst.Call) and last_name(listed.func) in ("parameters", "named_parameters")
