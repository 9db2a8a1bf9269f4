"""Rule for the arguments ``process_group`` and ``device_mesh``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.chosen_groups import chosen_groups, mesh_edits
from fsdp_rules.construction._plan.leaves import leaves
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.construction._plan.strategies import follow, known_strategy
from fsdp_rules.file.expressions import bind, brief, elements, is_none
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.strategy_names import HYBRID
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level

MADE = ("device_type", "mesh_shape")
NAMES = 'mesh_dim_names=("replicate", "shard")'


class Mesh(ArgumentRule):
    """process_group and device_mesh.

    A `device_mesh` that the file builds with `init_device_mesh` becomes `mesh=`; its dimensions already have FSDP2's
    order, replicate before shard. A process group becomes a mesh of one dimension. A (shard, replicate) pair of groups
    becomes a mesh of two dimensions in reverse order. FSDP1's strategies need one dimension, hybrid ones two, and a
    mesh of unknown shape is assumed to have that many. Branches that choose one group or a pair now choose a mesh.
    """

    id = "FSDP107"
    name = "process-group-and-mesh"
    moves_together = True
    what_to_test = (
        "Run on as many machines as in production, or at least two: the mesh decides which ranks share shards."
    )
    arguments = ("process_group", "device_mesh")
    before = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    mesh = init_device_mesh("cuda", (8,))
    model = FSDP(model, device_mesh=mesh)
    return model
"""
    after = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

def build(model):
    mesh = init_device_mesh("cuda", (8,))
    fully_shard(model, mesh=mesh)
    return model
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Pass a mesh on as it is, make one of a group; FSDP1's strategies say how many dimensions it has."""
        found = file.value(value)
        if is_none(found):
            return
        if self._is_given_by(value, "process_group", plan):
            yield from self._group(value, found, plan, file)
            return
        plan.mesh, plan.mesh_value = "given", value
        strategy = plan.arguments.get("sharding_strategy", cst.Name("None"))
        if known_strategy(file.value(strategy), file) == "NO_SHARD":
            yield Diagnosis(
                value, Level.REVIEW, f"assumes {brief(file.code(value), 30)} has one dimension, as in FSDP1"
            )
            return
        shape = self._shape(found)
        if shape is None or not self._is_made_here(found, file):
            plan.assumptions.append(
                f"assumes {brief(file.code(value), 30)} has one dimension, or two with a hybrid strategy, as in FSDP1"
            )
            yield Diagnosis(value, Level.REVIEW, "the mesh is passed to fully_shard unchanged")
            return
        if len(shape.elements) > 2:
            plan.helper.append(f"{brief(file.code(value))} has more than two dimensions")
        names = bind(cst.ensure_type(found, cst.Call), MADE) or {}
        if len(shape.elements) == 2 and "mesh_dim_names" not in names:
            plan.edits.append(_named(cst.ensure_type(found, cst.Call)))
        yield Diagnosis(value, Level.SAFE, "the mesh is passed to fully_shard unchanged")

    def _group(
        self, value: cst.BaseExpression, found: cst.BaseExpression, plan: ShardPlan, file: File
    ) -> Iterable[Diagnosis]:
        if isinstance(found, cst.SimpleString):
            advice = "pass what torch.distributed.new_group() returns, or nothing for all ranks"
            yield Diagnosis(value, Level.MANUAL, "process_group is a string, which FSDP1 rejects", advice)
            return
        pair = elements(found) if isinstance(found, cst.Tuple) else None
        if pair is not None and len(pair) == 2:
            plan.mesh, plan.mesh_value, plan.groups = "groups", value, (pair[0], pair[1])
            yield Diagnosis(value, Level.SAFE, "the (shard, replicate) groups become a (replicate, shard) mesh")
            return
        choices = leaves(value, file).nodes
        if any(isinstance(choice, cst.Tuple) for choice in choices):
            chosen = chosen_groups(value, file) if self._chooses_hybrid(plan, file) else []
            if chosen:
                plan.mesh, plan.mesh_value = "given", value
                plan.mesh_name = file.fresh(value, "mesh", "device_mesh", "shard_mesh")
                plan.edits += mesh_edits(chosen, plan, file)
                message = "the branches pass one group or two, assuming two groups mean a hybrid strategy"
                yield Diagnosis(value, Level.REVIEW, message, "FSDP1 refused any other combination.")
                return
            plan.helper.append(f"{brief(file.code(value))} may be one group or two")
        plan.mesh, plan.mesh_value = "group", value
        if self._may_be_none(value, found, file):
            plan.optional_group = True
        yield Diagnosis(value, Level.SAFE, "DeviceMesh.from_group makes the mesh of this group")

    def _chooses_hybrid(self, plan: ShardPlan, file: File) -> bool:
        """Whether the strategy is chosen between hybrid ones and others, none of them NO_SHARD."""
        strategy = plan.arguments.get("sharding_strategy")
        choices, reason = follow(strategy, file) if strategy is not None else (None, "")
        if choices is None or reason or choices.others or "NO_SHARD" in choices.names:
            return False
        return not HYBRID.isdisjoint(choices.names) and not choices.names <= HYBRID

    def _may_be_none(self, value: cst.BaseExpression, found: cst.BaseExpression, file: File) -> bool:
        """Whether the group is a parameter whose default is None, or is None on some way to the call."""
        if any(is_none(choice) for choice in leaves(value, file).nodes):
            return True
        function = file.function(value)
        if function is None or not isinstance(found, cst.Name):
            return False
        parameters = (*function.params.params, *function.params.kwonly_params)
        return any(entry.name.value == found.value and is_none(entry.default) for entry in parameters)

    def _is_given_by(self, value: cst.BaseExpression, name: str, plan: ShardPlan) -> bool:
        return plan.arguments.get(name) is value

    def _is_made_here(self, found: cst.BaseExpression, file: File) -> bool:
        name = file.resolved(found.func) if isinstance(found, cst.Call) else None
        return name is not None and name.endswith("device_mesh.init_device_mesh")

    def _shape(self, found: cst.BaseExpression) -> cst.Tuple | None:
        shape = (bind(found, MADE) or {}).get("mesh_shape") if isinstance(found, cst.Call) else None
        return shape if isinstance(shape, cst.Tuple) else None


def _named(call: cst.Call) -> Replace:
    """``call`` with the names of its dimensions, which FSDP2 asks for."""

    def build(code: Code) -> str:
        arguments = [code(entry).rstrip(", ") for entry in call.args]
        return f"{code(call.func)}({', '.join([*arguments, NAMES])})"

    return Replace(call, build)
