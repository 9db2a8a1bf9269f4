"""Rule for the arguments ``process_group`` and ``device_mesh``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import bind, brief, is_none
from fsdp_rules.file.file import File, dotted
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level


class Mesh(ArgumentRule):
    """process_group and device_mesh.

    A `device_mesh` that the file builds with `init_device_mesh` becomes `mesh=`; its dimensions already have FSDP2's
    order, replicate before shard. A process group, a (shard, replicate) pair of them (the opposite order) and a mesh of
    unknown shape are converted to a mesh by `fsdp_compat.shard`.
    """

    id = "FSDP107"
    name = "process-group-and-mesh"
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
        """Use a mesh whose shape is known as it is; leave everything else to the helper."""
        found = file.value(value)
        if is_none(found):
            return
        dimensions = self._dimensions(found, file)
        if dimensions is None:
            plan.helper.append(f"the shape of {brief(file.code(value))} is only known at run time")
            yield Diagnosis(
                value, Level.REVIEW, "fsdp_compat.shard makes a mesh of it at run time, replicate before shard"
            )
            return
        plan.mesh = "given"
        plan.mesh_value = value
        yield Diagnosis(value, Level.SAFE, "the mesh is passed to fully_shard unchanged")

    def _dimensions(self, found: cst.BaseExpression, file: File) -> int | None:
        if not isinstance(found, cst.Call):
            return None
        name = file.resolved(found.func)
        if name is None or not name.endswith("device_mesh.init_device_mesh"):
            return None
        arguments = bind(found, ("device_type", "mesh_shape")) or {}
        shape = arguments.get("mesh_shape")
        if not isinstance(shape, cst.Tuple):
            return None
        if len(shape.elements) > 1 and "mesh_dim_names" not in arguments:
            return None
        return len(shape.elements) if dotted(found) is not None or len(shape.elements) <= 2 else None
