"""Rule for the argument ``auto_wrap_policy``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_rule import ArgumentRule
from fsdp_rules.construction._plan.leaves import Found, is_shared, leaves
from fsdp_rules.construction._plan.local_functions import by_policy, by_size
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.construction._plan.policy_test import (
    BY_CLASS,
    PolicyTest,
    as_function,
    computed,
    is_assigned,
    is_below,
    parts,
    policy_call,
    policy_test,
    tests_a_module,
)
from fsdp_rules.construction._plan.slots import given, slot_of
from fsdp_rules.construction._plan.unit_arguments import (
    function_of,
    read_by_units,
    says,
    slot_of_units,
    unit_edits,
    units,
)
from fsdp_rules.file.expressions import brief, elements, is_none, is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.own_names import BY_POLICY, own_name
from fsdp_rules.project.configured import Contract
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level


class AutoWrapPolicy(ArgumentRule):
    """auto_wrap_policy.

    A policy by class (`transformer_auto_wrap_policy`, `ModuleWrapPolicy`) or by predicate (`lambda_auto_wrap_policy`)
    becomes a loop over the modules, children before parents, as FSDP1 wraps them. Policies combined by `_or_policy`
    become one test. Policies chosen at run time become functions that test a module. A policy from other code is called
    for each module, or, if a policy in the project counts parameters, by a short function that counts as FSDP1 does.
    The function of a `CustomPolicy` in the project returns the arguments of `fully_shard` for each unit, or None for no
    unit, if its strategies and precisions are literals or constants. Otherwise `fsdp_compat.shard` runs the function.

    `rewrite --layout expert` shards other units than FSDP1's, with the same sums: the last one is not resharded after
    forward, and embeddings and [norm, head] become units if the classes of the project show them.
    """

    id = "FSDP103"
    name = "auto-wrap-policy"
    moves_together = True
    what_to_test = (
        "List the sharded modules (`[n for n, m in model.named_modules() if isinstance(m, FSDPModule)]`) and compare "
        "them with the modules that FSDP1 wrapped."
    )
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
        found = leaves(value, file)
        single = found.nodes[0] if len(found.nodes) == 1 and found.leaves[0].slot is None else None
        if not found.unknown and all(map(is_none, found.nodes)):
            plan.consume_value(value, file)
        elif single is not None and self._select(single, plan, file):
            plan.consume_value(value, file)
            yield Diagnosis(
                value, Level.SAFE, "the units that this policy selects are sharded in a loop, children first"
            )
        elif self._choose(value, found, plan, file):
            yield Diagnosis(value, Level.SAFE, "each policy that may be chosen becomes a function that tests a module")
        elif single is not None and (function := function_of(single, file)) is not None:
            yield self._give_each(value, function, plan, file)
        elif not any(_may_be_custom(node, file) for node in found.nodes) and file.fsdp1(value) is None:
            self._ask(value, plan, file)
            said = "the policy is called for each module, as FSDP1 does"
            yield Diagnosis(value, Level.REVIEW, said, "compare the units with fsdp-migrate preflight --compare")
        else:
            plan.helper.append(f"auto_wrap_policy={brief(file.code(value))} is applied at run time")
            yield Diagnosis(value, Level.SAFE, "fsdp_compat.shard runs the policy module by module, as FSDP1 wraps")

    def _give_each(
        self, value: cst.BaseExpression, function: cst.BaseExpression, plan: ShardPlan, file: File
    ) -> Diagnosis:
        """Give each unit the arguments that the ``function`` of a CustomPolicy has for it."""
        said = says(function, file)
        slot = slot_of_units(function, file)
        if slot is not None and isinstance(said, Contract):
            known = file.project.configured.get(slot)
            if known is None or not known.converted:
                said = f"{brief(file.code(function), 30)} is used in other places"
        if not isinstance(said, Contract):
            plan.helper.append(said)
            message = "fsdp_compat.shard runs the policy module by module, with FSDP1's arguments for each"
            return Diagnosis(value, Level.SAFE, message)
        plan.consume_value(value, file)
        if slot is not None:
            plan.take_slot(function, slot)
        else:
            found = units(function, file)
            plan.edits += unit_edits(found, file)
            plan.consumed += read_by_units(found, file)
        if isinstance(function, cst.Lambda):
            name = function.params.params[0].name.value
            if file.fresh(plan.call, name) != name:
                plan.helper.append(f"the lambda in {brief(file.code(value), 30)} has an additional parameter")
            plan.unit = name
        plan.each = (function, said)
        plan.selector, plan.selector_nodes = "{n0}({module}) is not None", (function,)
        return Diagnosis(value, Level.SAFE, "each unit that this policy selects is sharded with its arguments")

    def _ask(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> None:
        """Plan to ask a policy from elsewhere: about each module alone, where no policy of the project counts."""
        name = brief(file.code(value), 30)
        counts = "counting_policy" in file.project.flags and not self._counts_nothing(value, file)
        if is_repeatable(value) and not counts:
            plan.selector_nodes = (value,)
            asked = "{n0}({module}, recurse=False, nonwrapped_numel=0)"
            plan.selector = f"{{n0}} is not None and {asked}"
            plan.assumptions.append(
                f"assumes {name} is None, or selects by class or predicate and counts no parameters"
            )
            return
        test = PolicyTest(f"{own_name(BY_POLICY, file)}({{module}}, {{n0}})[0]", (value,), by_size=True)
        plan.selector, plan.units = test.template, test
        plan.edits += by_policy(file)
        plan.assumptions.append(f"assumes {name} is a function of (module, recurse, nonwrapped_numel), or None")

    def _counts_nothing(self, value: cst.BaseExpression, file: File) -> bool:
        """Whether all policies that it can be test a class, or a module alone."""
        found = leaves(value, file)
        contracts = [leaf.contract(file) for leaf in found.leaves if not is_none(leaf.node)]
        return not found.unknown and all(known is not None and known.kind == "policy" for known in contracts)

    def _choose(self, value: cst.BaseExpression, found: Found, plan: ShardPlan, file: File) -> bool:
        """Make a function of a module out of each policy that may be chosen; other definitions give theirs."""
        taken = [leaf for leaf in found.leaves if leaf.slot is not None]
        called = len(taken) == 1 and taken[0].node is value
        named = isinstance(value, cst.Name | cst.Subscript) or called
        if found.unknown or (len(found.nodes) < 2 and not taken) or not named:
            return False
        contracts = [leaf.contract(file) for leaf in taken]
        if not all(known is not None and known.kind == "policy" and known.converted for known in contracts):
            return False
        nodes = [leaf.node for leaf in found.leaves if leaf.slot is None]
        tests = [None if is_none(node) else policy_test(node, file) for node in nodes]
        if any(test is None and not is_none(node) for node, test in zip(nodes, tests, strict=True)):
            return False
        if is_shared(found, file):
            return False
        sized = any(test is not None and test.by_size for test in tests)
        here = file.function(plan.call)
        late = sized and any(file.function(node) is not here for node in nodes)
        if sized and (taken if late else not _is_the_same_above(plan.module, plan.call, file)):
            return False
        for leaf in taken:
            plan.take(leaf)
        asked = plan.named(value, ("units_of",) if late else ("should_shard", "is_unit"), file)
        plan.edits += [
            Replace(node, as_function(test, None if late else plan.module, bare=is_assigned(node, file)))
            for node, test in zip(nodes, tests, strict=True)
        ]
        if late:
            plan.units = PolicyTest("{n0}({module})", (asked,), by_size=True)
        plan.edits += by_size(file) if sized else []
        for node in nodes:
            for part in parts(node, file):
                plan.consume_value(part, file)
        plan.selector, plan.selector_nodes = "{n0}({module})", (asked,)
        return True

    def _select(self, policy: cst.BaseExpression, plan: ShardPlan, file: File) -> bool:
        name, arguments = policy_call(policy, file) or ("", {})
        if name in BY_CLASS and set(arguments) == {BY_CLASS[name]}:
            return self._classes(arguments[BY_CLASS[name]], plan, file)
        if tests_a_module(name, arguments, file):
            return self._predicate(arguments["lambda_fn"], plan, file)
        test = policy_test(policy, file)
        if test is None:
            return False
        for part in parts(policy, file):
            plan.consume_value(part, file)
        if test.by_size:
            plan.units = test
            plan.edits += by_size(file)
        text = f"({test.template})" if " or " in test.template else test.template
        plan.select(text, test.nodes, computed(() if test.by_size else test.nodes), file)
        return True

    def _classes(self, value: cst.BaseExpression, plan: ShardPlan, file: File) -> bool:
        found = file.value(value)
        classes = elements(found)
        if classes is not None and classes and (found is value or self._movable(value, file)):
            if found is not value:
                plan.consume_value(value, file)
            names = ", ".join(f"{{n{position}}}" for position in range(len(classes)))
            kinds = names if len(classes) == 1 else f"({names})"
            plan.select(f"isinstance({{module}}, {kinds})", classes, computed(classes), file)
            return True
        plan.select("isinstance({module}, tuple({n0}))", [value], computed([value]), file)
        return True

    def _movable(self, value: cst.BaseExpression, file: File) -> bool:
        return isinstance(value, cst.Name) and len(file.uses(value.value)) == 1

    def _predicate(self, function: cst.BaseExpression, plan: ShardPlan, file: File) -> bool:
        plan.below_root = is_below(function)
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


def _may_be_custom(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node``, or the definition that gives it, is a CustomPolicy, which cannot be asked about a module."""
    slot = slot_of(node, file)
    if slot is not None and slot.path != file.path:
        return b"CustomPolicy" in file.project.sources.get(slot.path, b"")
    values = [node, *(given(slot, file) if slot is not None else [])]
    return any("CustomPolicy" in file.code(value) for value in values)


def _is_the_same_above(model: cst.BaseExpression, call: cst.Call, file: File) -> bool:
    """Whether ``model`` is a name that nothing but ``call`` gives another value in its function."""
    if not isinstance(model, cst.Name):
        return False
    own = file.statement(call)
    bound = [
        entry for entry in file.bindings.found.get((file.scope(call), model.value), ()) if entry.statement is not own
    ]
    return len(bound) == 1 and isinstance(bound[0].statement, cst.Param)
