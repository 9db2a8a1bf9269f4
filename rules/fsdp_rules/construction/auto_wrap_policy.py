"""Rule for the argument ``auto_wrap_policy``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.expressions import bind, brief, elements, is_none, is_partial
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

#: For each policy that is a plain test on the module: the argument that holds the test.
BY_CLASS = {
    "transformer_auto_wrap_policy": "transformer_layer_cls",
    "_module_wrap_policy": "module_classes",
    "ModuleWrapPolicy": "module_classes",
}


class AutoWrapPolicy(ArgumentRule):
    """auto_wrap_policy.

    A policy by class (`transformer_auto_wrap_policy`, `ModuleWrapPolicy`) or by predicate (`lambda_auto_wrap_policy`)
    becomes a loop over the modules, children before parents, as FSDP1 wraps them. `fsdp_compat.shard` runs all other
    policies exactly as FSDP1 does: those that count parameters, combine others, have per-module arguments or come from
    another file.
    """

    id = "FSDP103"
    name = "auto-wrap-policy"
    arguments = ("auto_wrap_policy",)
    before = """
import functools

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

def build(model):
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = FSDP(model, auto_wrap_policy=policy)
    return model
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    for module in reversed(list(model.modules())):
        if isinstance(module, Block) and module is not model:
            fully_shard(module)
    fully_shard(model)
    return model
"""

    def plan(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> Iterable[Diagnosis]:
        """Turn the policy into a test on each module, or leave it to the helper."""
        if is_none(value):
            return
        found = file.value(value)
        if is_none(found) or not self._select(found, plan, file):
            plan.helper.append(f"auto_wrap_policy={brief(file.code(value))} is applied at run time")
            yield Diagnosis(value, Level.REVIEW, "fsdp_compat.shard runs the policy module by module, as FSDP1 wraps")
            return
        plan.consume_value(value, file)
        yield Diagnosis(value, Level.SAFE, "the units that this policy selects are sharded in a loop, children first")

    def _select(self, policy: cst.BaseExpression, plan: ShardPlan, file: File) -> bool:
        if not isinstance(policy, cst.Call):
            return False
        if is_partial(policy, file):
            if not policy.args or policy.args[0].star:
                return False
            name = file.fsdp1(policy.args[0].value)
            arguments = bind(policy.with_changes(args=policy.args[1:]), ())
        else:
            name = file.fsdp1(policy.func)
            arguments = bind(policy, ("module_classes",)) if name == "ModuleWrapPolicy" else None
        if name is None or arguments is None:
            return False
        if name in BY_CLASS and set(arguments) == {BY_CLASS[name]}:
            return self._classes(arguments[BY_CLASS[name]], plan, file)
        if name == "lambda_auto_wrap_policy" and set(arguments) == {"lambda_fn"}:
            return self._predicate(arguments["lambda_fn"], plan, file)
        return False

    def _classes(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> bool:
        found = file.value(value)
        classes = elements(found)
        if classes is not None and classes and (found is value or self._movable(value, file)):
            if found is not value:
                plan.consume_value(value, file)
            plan.selector_nodes = tuple(classes)
            names = ", ".join(f"{{n{position}}}" for position in range(len(classes)))
            plan.selector = (
                f"isinstance({{module}}, {names})" if len(classes) == 1 else f"isinstance({{module}}, ({names}))"
            )
            return True
        plan.selector_nodes = (value,)
        plan.selector = "isinstance({module}, tuple({n0}))"
        return True

    def _movable(self, value: cst.BaseExpression, file: File) -> bool:
        return isinstance(value, cst.Name) and len(file.uses(value.value)) == 1

    def _predicate(self, function: cst.BaseExpression, plan: ShardPlan, file: File) -> bool:
        if isinstance(function, cst.Name):
            plan.selector_nodes = (function,)
            plan.selector = "{n0}({module})"
            return True
        if not isinstance(function, cst.Lambda) or len(function.params.params) != 1:
            return False
        name = function.params.params[0].name.value
        plan.selector_nodes = (function.body,)
        if file.fresh(plan.call, name) == name and not isinstance(function.body, cst.Lambda | cst.NamedExpr):
            plan.unit = name
            loose = isinstance(function.body, cst.BooleanOperation | cst.IfExp) and not function.body.lpar
            plan.selector = "({n0})" if loose else "{n0}"
        else:
            plan.selector_nodes = (function,)
            plan.selector = "({n0})({module})"
        return True
