"""A process group that is one or a pair at run time: the branches that choose it make a mesh instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.construction._plan.leaves import leaves, readers
from fsdp_rules.construction._plan.meshes import Meshes, device_type
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import elements, is_none
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import call_text
from fsdp_rules.file.tree import Code
from fsdp_rules.verdict.diagnosis import Edit, ReplaceStatement


@dataclass(frozen=True, eq=False)
class ChosenGroup:
    """One branch's statement, the group that it assigns, and the two of it where it is a pair."""

    statement: cst.Assign
    value: cst.BaseExpression
    pair: tuple[cst.BaseExpression, cst.BaseExpression] | None


def chosen_groups(value: cst.BaseExpression, file: File) -> list[ChosenGroup]:
    """The statements that give the name ``value`` one group or a pair, none where it may be something else too.

    Each assigns the name alone, in the function that shards, and nothing else reads it.
    """
    found = leaves(value, file)
    if not isinstance(value, cst.Name) or found.unknown or next(readers(found, file), None) is not None:
        return []
    if [carrier.value for carrier in found.carriers] != [value.value]:
        return []
    chosen: list[ChosenGroup] = []
    for node in found.nodes:
        statement = file.parent(node)
        pair = elements(node) if isinstance(node, cst.Tuple) else None
        if not isinstance(statement, cst.Assign) or len(statement.targets) > 1 or is_none(node):
            return []
        if (pair is not None and len(pair) != 2) or file.function(statement) is not file.function(value):
            return []
        chosen.append(ChosenGroup(statement, node, (pair[0], pair[1]) if pair is not None else None))
    return chosen


def mesh_edits(chosen: list[ChosenGroup], plan: ShardPlan, file: File) -> list[Edit]:
    """The edits that make the mesh of each group where the group was chosen."""
    return [ReplaceStatement(entry.statement, _made(entry, plan, file)) for entry in chosen]


def _made(chosen: ChosenGroup, plan: ShardPlan, file: File) -> Callable[[Code], str]:
    from_group = file.ref("torch.distributed.device_mesh.DeviceMesh") + ".from_group"
    name = plan.mesh_name or ""

    def build(code: Code) -> str:
        if chosen.pair is not None:
            return "\n".join(Meshes(plan, file).of_groups(name, chosen.pair, chosen.value, code))
        kind = device_type(plan.device, file, code)
        return f"{name} = {call_text(from_group, [code(chosen.value), kind])}"

    return build
