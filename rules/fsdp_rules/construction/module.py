"""Rule for the argument ``module``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.file import File
from fsdp_rules.model.sharded import is_wrapped_around, sharded_owner
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level


class ModuleArgument(ArgumentRule):
    """Model argument.

    FSDP2 shards it in place: `fully_shard` returns the object that it gets, with the same parameter names and no
    wrapper. A new name for the wrapped model becomes a second name for the same object. A call inside a module class
    (or under a parent that is wrapped as well) is a unit of a larger model: FSDP1 casts only the inputs of the
    outermost unit, so such a unit does not cast.
    """

    id = "FSDP110"
    name = "module"
    moves_together = True
    arguments = ("module",)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel

def build(cfg):
    wrapped = FullyShardedDataParallel(module=Net(cfg))
    return wrapped
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(cfg):
    wrapped = Net(cfg)
    fully_shard(wrapped)
    return wrapped
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Find out whether the call wraps a root or a unit inside a larger model."""
        plan.root = not self._nested(plan.call, value, file)
        where = (
            "the model is sharded in place"
            if plan.root
            else "part of a larger model: sharded in place, inputs are not cast here"
        )
        yield Diagnosis(value, Level.SAFE, where)

    def _nested(self, call: cst.Call, value: cst.BaseExpression, file: File) -> bool:
        for ancestor in file.ancestors(call):
            if isinstance(ancestor, cst.Call) and ancestor is not call and file.code(ancestor.func) == "setattr":
                return True
            if isinstance(ancestor, cst.ClassDef):
                return any("Module" in file.code(base.value) for base in ancestor.bases)
        statement = file.statement(call)
        if isinstance(statement, cst.Assign) and len(statement.targets) == 1:
            target: cst.BaseExpression = statement.targets[0].target
            while isinstance(target, cst.Subscript):
                target = target.value
            if not isinstance(target, cst.Attribute) or file.code(target.value) == "self":
                return False
            return sharded_owner(target.value, file) is not None or is_wrapped_around(target.value, file)
        return False
