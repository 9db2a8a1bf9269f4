"""Rule for the argument ``cpu_offload``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.leaves import given_elsewhere, is_shared, leaves
from fsdp_rules.construction._plan.offload import offload_policy, offloads
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import brief, is_none, is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.model.backends import gets_cpu_backend, reduces_no_cpu_tensors
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level

CPU_BACKEND = 'assumes the process group has a CPU backend too ("cuda:nccl,cpu:gloo")'

OFFLOADS = "CPUOffloadPolicy() offloads parameters, and norms are reduced on the CPU"
LACKS_BACKEND = "CPUOffloadPolicy() offloads parameters, whose norms NCCL alone cannot reduce on the CPU"
START = 'start the process group with backend="cpu:gloo,cuda:nccl"'


class CpuOffload(ArgumentRule):
    """cpu_offload.

    `CPUOffload(offload_params=True)` becomes `CPUOffloadPolicy()`; a disabled one is removed. The process group then
    needs a CPU backend as well (`"cuda:nccl,cpu:gloo"`), since norms are reduced there.
    """

    id = "FSDP105"
    name = "cpu-offload"
    moves_together = True
    what_to_test = "After a step, check the device of parameters and optimizer state (`p.device`): it is the CPU."
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
        found = leaves(value, file)
        if (leaf := given_elsewhere(found, "offload", file)) is not None:
            plan.offload_value = plan.held(value, leaf, ("offload_policy", "offloading"), file)
            plan.assumptions += [] if reduces_no_cpu_tensors(file) else [CPU_BACKEND]
            yield Diagnosis(value, Level.SAFE, "the definition of this CPUOffload becomes an OffloadPolicy")
            return
        wanted = [offloads(node, file) for node in found.nodes]
        single = wanted[0] if len(wanted) == 1 else None
        if found.unknown or None in wanted:
            plan.helper.append(f"cpu_offload={brief(file.code(value))} is only known at run time")
            yield Diagnosis(
                value, Level.REVIEW, "fsdp_compat.shard decides at run time whether parameters are offloaded"
            )
            return
        lacks_backend = reduces_no_cpu_tensors(file) and not gets_cpu_backend(file)
        plan.assumptions += [] if single is False or lacks_backend else [CPU_BACKEND]
        if isinstance(single, bool):
            plan.consume_value(value, file)
            plan.offload = single
        elif isinstance(single, cst.BaseExpression) and is_repeatable(single):
            plan.consume_value(value, file)
            plan.offload_if = single
        elif is_shared(found, file):
            plan.helper.append(f"{brief(file.code(value))} is used in other places")
        else:
            plan.offload_value = value
            plan.edits += [
                Replace(node, offload_policy(meant, file)) for node, meant in zip(found.nodes, wanted, strict=True)
            ]
        if single is False:
            yield Diagnosis(value, Level.SAFE, "nothing is offloaded, as fully_shard does by default")
        else:
            yield Diagnosis(
                value,
                Level.REVIEW,
                LACKS_BACKEND if lacks_backend else OFFLOADS,
                START if lacks_backend else "compare the gradient norms of the first steps with those of FSDP1",
            )
