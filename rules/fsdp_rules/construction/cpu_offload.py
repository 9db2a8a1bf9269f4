"""Rule for the argument ``cpu_offload``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import bind, brief, is_none, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level


class CpuOffload(ArgumentRule):
    """cpu_offload.

    `CPUOffload(offload_params=True)` becomes `CPUOffloadPolicy()`; a disabled one is removed. The process group then
    needs a CPU backend as well (`"cuda:nccl,cpu:gloo"`), since norms are reduced there.
    """

    id = "FSDP105"
    name = "cpu-offload"
    arguments = ("cpu_offload",)
    before = """
from torch.distributed.fsdp import CPUOffload
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    return FSDP(model, cpu_offload=CPUOffload(offload_params=True))
"""
    after = """
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

def build(model):
    return fully_shard(model, offload_policy=CPUOffloadPolicy())
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Decide whether anything is offloaded."""
        if is_none(value):
            return
        wanted = self._wanted(file.value(value), file)
        if wanted is None:
            plan.helper.append(f"cpu_offload={brief(file.code(value))} is only known at run time")
            yield Diagnosis(
                value, Level.REVIEW, "fsdp_compat.shard decides at run time whether parameters are offloaded"
            )
            return
        plan.consume_value(value, file)
        plan.offload = wanted
        if wanted:
            plan.assumptions.append('assumes the process group has a CPU backend too ("cuda:nccl,cpu:gloo")')
            yield Diagnosis(
                value, Level.REVIEW, "CPUOffloadPolicy() offloads parameters, and norms are reduced on the CPU"
            )
        else:
            yield Diagnosis(value, Level.SAFE, "nothing is offloaded, as fully_shard does by default")

    def _wanted(self, value: cst.BaseExpression, file: File) -> bool | None:
        if is_none(value):
            return False
        if not isinstance(value, cst.Call) or file.fsdp1(value.func) != "CPUOffload":
            return None
        arguments = bind(value, ("offload_params",))
        if arguments is None:
            return None
        return literal_bool(arguments["offload_params"]) if "offload_params" in arguments else False
