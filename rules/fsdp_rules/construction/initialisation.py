"""Rules for the arguments ``param_init_fn`` and ``sync_module_states``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.leaves import leaves
from fsdp_rules.construction._plan.materializing import only_empties
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import is_none, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.what_to_test import WEIGHTS


class ParamInitFn(ArgumentRule):
    """param_init_fn.

    FSDP1 initialises each unit on the full tensors, then shards it, so the values do not depend on the number of
    processes. FSDP2 has no such step, so a short function in the file runs it on the modules of each unit that is on
    the meta device, in FSDP1's order and before its `fully_shard`. Without `param_init_fn`, FSDP1 runs
    `reset_parameters`. If the model may be on the meta device, the function does the same.
    """

    id = "FSDP109"
    name = "param-init-fn"
    moves_together = True
    what_to_test = WEIGHTS
    arguments = ("param_init_fn",)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model, init):
    model = FSDP(model, param_init_fn=init)
    return model
"""
    after = '''
import itertools

from torch.distributed.fsdp import FSDPModule, fully_shard

def materialize_unit(unit, init_module):
    """Run ``init_module`` on a unit with meta tensors, sharded units in it left out."""
    modules = [unit]
    for module in modules:
        modules += [m for m in module.children() if m not in modules and not isinstance(m, FSDPModule)]
    if any(tensor.is_meta for tensor in itertools.chain(unit.parameters(), unit.buffers())):
        for module in modules:
            init_module(module)


def build(model, init):
    materialize_unit(model, init)
    fully_shard(model)
    return model
'''

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Plan that the function runs on each unit, where it may be one."""
        found = leaves(value, file)
        chosen = [node for node in found.nodes if not is_none(node)]
        if not chosen and not found.unknown:
            plan.consume_value(value, file)
            return
        plan.on_meta, plan.param_init_fn = True, value
        plan.draws = bool(found.unknown) or not all(only_empties(node, file) for node in chosen)
        level = Level.SAFE
        if len(chosen) < len(found.nodes):
            plan.assumptions.append("assumes param_init_fn is set wherever this model is on the meta device")
            level = Level.REVIEW
        advice = "compare the losses of the first steps with those of FSDP1" if level is Level.REVIEW else ""
        yield Diagnosis(value, level, "the function runs on the full tensors of each unit, as under FSDP1", advice)


class SyncModuleStates(ArgumentRule):
    """Broadcast from rank 0 (sync_module_states).

    FSDP1 broadcasts each unit's parameters and buffers before it shards them. The rewrite broadcasts one tensor at a
    time before the first `fully_shard`, inside the groups of the mesh if there is one. At most one full tensor is
    copied to the device at a time. A model that may be on the meta device is broadcast unit by unit.
    """

    id = "FSDP114"
    name = "sync-module-states"
    what_to_test = WEIGHTS
    arguments = ("sync_module_states",)
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build():
    model = Transformer()
    model = FSDP(model, device_id=torch.cuda.current_device(), sync_module_states=True)
    return model
"""
    after = """
import itertools

import torch
from torch.distributed.fsdp import fully_shard

def build():
    model = Transformer()
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        synced = tensor.detach().to(torch.cuda.current_device())
        torch.distributed.broadcast(synced, src=0)
        tensor.detach().copy_(synced)
    fully_shard(model)
    return model
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Plan a broadcast, unless it is off for certain."""
        if literal_bool(file.value(value)) is False:
            plan.consume_value(value, file)
            return
        is_known = literal_bool(value) is not None
        plan.sync = value if is_known else plan.named(value, ("sync_states", "syncs_module_states"), file)
        yield Diagnosis(value, Level.SAFE, "parameters and buffers are broadcast from rank 0 before they are sharded")
