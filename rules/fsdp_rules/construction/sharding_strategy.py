"""Rule for the argument ``sharding_strategy``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.local_functions import by_name
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.construction._plan.strategies import Strategies, follow, known_strategy, name_looked_up
from fsdp_rules.file.expressions import brief, is_none, is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.own_names import BY_NAME, own_name
from fsdp_rules.fsdp1.strategy_names import HYBRID
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level


class Strategy(ArgumentRule):
    """sharding_strategy.

    `FULL_SHARD` is FSDP2's default (both keep the root gathered after forward). `SHARD_GRAD_OP` is
    `reshard_after_forward=False`. `HYBRID_SHARD` and `_HYBRID_SHARD_ZERO2` shard inside a node and replicate
    between nodes: a two-dimensional mesh, nodes first. (With one device per node, FSDP1 replicates without ever
    reducing gradients between nodes. FSDP2 reduces them, so the losses differ.) `NO_SHARD` is a mesh with a shard
    dimension of size 1. If the strategy is chosen at run time between values in the file (a dictionary, branches, a
    conditional expression), each becomes the equivalent arguments of `fully_shard`. A value from other code is
    passed to `fsdp_compat.shard`, which accepts all five.
    """

    id = "FSDP102"
    name = "sharding-strategy"
    moves_together = True
    what_to_test = "Compare the peak memory of each GPU after a few steps: it shows if the same parameters are sharded."
    arguments = ("sharding_strategy",)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

def build(model):
    model = FSDP(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    return model
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    fully_shard(model, reshard_after_forward=False)
    return model
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Turn the strategy into ``reshard_after_forward`` and a kind of mesh."""
        known = known_strategy(file.value(value), file)
        if known is not None:
            plan.consume_value(value, file)
            yield from self._certain(known, value, plan)
            return
        choices, reason = follow(value, file)
        if not reason and choices.others:
            if self._needs_nothing(choices, plan):
                yield Diagnosis(value, Level.SAFE, f"{WITH_MESH} the mesh that is given")
                return
            reason = self._take(value, choices, plan, file)
        if reason and plan.mesh in (None, "given") and self._is_looked_up(value, choices, plan, file):
            plan.edits += by_name(file)
            if plan.mesh == "given":
                plan.assumptions.append("assumes the strategy is not NO_SHARD if a mesh is given")
            mapper = own_name(BY_NAME, file)
            advice = f"add any other name that this project uses to {mapper}"
            yield Diagnosis(value, Level.REVIEW, f"{mapper} maps strategy names to arguments", advice)
            return
        if reason:
            plan.helper.append(reason)
            yield Diagnosis(value, Level.SAFE, "fsdp_compat.shard resolves the strategy at run time")
            return
        kinds = choices.names
        if plan.mesh in ("group", "groups") and not HYBRID.isdisjoint(kinds) and len(kinds) > 1:
            plan.helper.append("process_group may be one group or two")
        if choices.is_parameter:
            name = file.code(value)
            plan.assumptions.append(f"assumes no other code passes {name}, which now contains arguments of fully_shard")
        elif len(kinds) == 1 and not choices.others:
            yield from self._certain(kinds.pop(), value, plan)
            return
        plan.strategy = choices
        if "NO_SHARD" in kinds:
            plan.assumptions.append(ONE_BACKWARD)
        yield Diagnosis(value, Level.SAFE, f"arguments of fully_shard replace {', '.join(sorted(kinds))}")

    def _needs_nothing(self, choices: Strategies, plan: ShardPlan) -> bool:
        """Whether a mesh is given that says all that the strategy could."""
        return plan.mesh == "given" and choices.names <= {"FULL_SHARD", "HYBRID_SHARD"}

    def _take(self, value: cst.BaseExpression, choices: Strategies, plan: ShardPlan, file: File) -> str:
        """Take the arguments that definitions in other places give; why they cannot be, "" if they can."""
        taken = [leaf for leaf in choices.leaves if leaf.node not in choices.kinds]
        contracts = [leaf.contract(file) for leaf in taken]
        if plan.mesh not in (None, "given") or not all(known is not None and known.converted for known in contracts):
            return f"sharding_strategy={brief(file.code(value))} comes from another definition"
        for leaf in taken:
            plan.take(leaf)
        return ""

    def _is_looked_up(self, value: cst.BaseExpression, choices: Strategies, plan: ShardPlan, file: File) -> bool:
        """Plan a look-up by name, for ``ShardingStrategy[name]`` and for a strategy that comes from elsewhere."""
        name = name_looked_up(file.value(value), file)
        if name is not None:
            plan.strategy = Strategies(value, name=name)
            plan.consume_value(value, file)
            return True
        if not is_repeatable(value):
            return False
        plan.strategy = Strategies(value, name=value, is_enum=True)
        plan.assumptions.append(f"assumes {brief(file.code(value), 30)} is a ShardingStrategy, never None")
        return True

    def _certain(self, known: str, value: cst.BaseExpression, plan: ShardPlan) -> Iterable[Diagnosis]:
        if known in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"):
            plan.reshard_after_forward = False
        if known in HYBRID and plan.mesh in (None, "group"):
            # With a hybrid strategy FSDP1 takes two groups, or none.
            plan.mesh = "hybrid" if plan.mesh is None else "groups"
        if known == "NO_SHARD":
            plan.assumptions.append(ONE_BACKWARD)
            mesh = plan.arguments.get("device_mesh", NONE)
            if plan.mesh == "given" and plan.mesh_value is mesh and is_repeatable(mesh):
                # FSDP1 replicates over its one dimension; fully_shard takes a second one, to shard over.
                plan.mesh, plan.mesh_value = "group", cst.Call(cst.Attribute(mesh, cst.Name("get_group")))
            elif not is_none(mesh):
                plan.helper.append("NO_SHARD on a mesh that is chosen at run time")
            plan.mesh = "replicated" if plan.mesh == "group" else "no_shard"
        yield Diagnosis(value, Level.SAFE, MEANING[known])


NONE = cst.Name("None")
ONE_BACKWARD = "assumes one backward per step (FSDP1 rounds accumulated gradients twice under NO_SHARD)"
CHECK_ACCUMULATED = "compare the losses of the first steps if gradients are accumulated"
WITH_MESH = "the strategy is FULL_SHARD or HYBRID_SHARD, and both mean"
MEANING = {
    "FULL_SHARD": "FULL_SHARD is fully_shard's default",
    "SHARD_GRAD_OP": "SHARD_GRAD_OP is reshard_after_forward=False",
    "HYBRID_SHARD": "HYBRID_SHARD is a (replicate, shard) mesh",
    "_HYBRID_SHARD_ZERO2": "_HYBRID_SHARD_ZERO2 is a (replicate, shard) mesh with reshard_after_forward=False",
    "NO_SHARD": "NO_SHARD is a mesh of size 1 in its shard dimension",
}
