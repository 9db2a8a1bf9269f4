"""Rule for definitions that give FSDP1's configuration to wraps in other functions and files."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.argument_dicts import argument_dict
from fsdp_rules.construction._plan.argument_edits import argument_edits, is_dropped
from fsdp_rules.construction._plan.contracts import values_of
from fsdp_rules.construction._plan.meshes import Meshes
from fsdp_rules.construction._plan.offload import offload_policy, offloads
from fsdp_rules.construction._plan.plan import Device, ShardPlan
from fsdp_rules.construction._plan.policy_test import as_function, is_assigned, parts, policy_test
from fsdp_rules.construction._plan.policy_text import policy_text
from fsdp_rules.construction._plan.precision_fields import precision_fields
from fsdp_rules.construction._plan.strategies import HYBRID, Strategies, known_strategy
from fsdp_rules.file.expressions import is_none
from fsdp_rules.file.file import File
from fsdp_rules.project.configured import Contract, Slot
from fsdp_rules.verdict.diagnosis import Build, Diagnosis, Edit, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.sentence import sentence

BECOMES = {
    "strategy": "a sharding strategy becomes the arguments of fully_shard that it means",
    "precision": "a MixedPrecision becomes a MixedPrecisionPolicy",
    "arguments": "FSDP1's arguments become those of fully_shard",
    "policy": "a wrap policy becomes a function that tests a module",
}


class SharedConfiguration(Rule):
    """Configuration from another definition.

    A function that returns a strategy, a `MixedPrecision` or a wrap policy, alone or in a tuple, and a module's name
    that holds one, change together with all wraps that use them, in whatever file these are. That is done where every
    use in the project is seen and becomes `fully_shard`; otherwise nothing of it changes. A dictionary of FSDP1's
    arguments that a function returns becomes one of arguments of `fully_shard` in the same way.
    """

    id = "FSDP123"
    name = "shared-configuration"
    moves_together = True
    visits = (cst.FunctionDef, cst.Assign, cst.AnnAssign)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

def strategy_of(config):
    if config.zero == 2:
        return ShardingStrategy.SHARD_GRAD_OP
    return ShardingStrategy.FULL_SHARD

def build(model, config):
    strategy = strategy_of(config)
    model = FSDP(model, sharding_strategy=strategy)
    return model
"""
    after = """
from torch.distributed.fsdp import fully_shard

def strategy_of(config):
    if config.zero == 2:
        return {"reshard_after_forward": False}
    return {}

def build(model, config):
    strategy = strategy_of(config)
    fully_shard(model, **strategy)
    return model
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """What the definition becomes, where all of its uses do."""
        if file.scope(node) or not file.project.configured:
            return
        for slot, contract in sorted(file.project.configured.items()):
            if slot.path != file.path or not _defines(node, slot):
                continue
            if contract.converted:
                yield from self._converted(slot, contract, file)
            elif contract.needed_by:
                message = f"{slot.name} keeps FSDP1's values, which {contract.needed_by} uses"
                yield Diagnosis(node, Level.INFO, message, "change the two together, then run this tool again")

    def _converted(self, slot: Slot, contract: Contract, file: File) -> Iterable[Diagnosis]:
        own = [(leaf.node, kind) for leaf, kind in values_of(slot, contract, file) if leaf.slot is None]
        held = argument_dict(slot, file) if contract.kind == "arguments" else None
        if not own and held is None:
            return
        edits = [edit for node, kind in own for edit in _edits(node, kind, contract, file)]
        edits += argument_edits(held, contract, file) if held is not None else []
        consumed = tuple(
            (binding.statement, part.value)
            for node, kind in own
            for part in (parts(node, file) if kind == "policy" else [])
            if isinstance(part, cst.Name) and (binding := file.binding(part)) is not None
        )
        dropped = [write.value for write in held.writes if is_dropped(write, contract)] if held is not None else []
        consumed += tuple(
            (binding.statement, value.value)
            for value in dropped
            if isinstance(value, cst.Name) and (binding := file.binding(value)) is not None
        )
        assumed = [f"assumes nothing outside of the given paths uses {slot.name}"]
        if slot.is_call and _makes_mesh(contract):
            assumed.append("assumes a process group exists where it is called")
        message = sentence(BECOMES[contract.kind], *assumed)
        at = held.writes[0].value if held is not None else own[0][0]
        claims = tuple(node for node, _ in own)
        yield Diagnosis(at, Level.REVIEW, message, "", tuple(edits), claims, consumed, gives=(slot,))


def _defines(node: cst.CSTNode, slot: Slot) -> bool:
    if isinstance(node, cst.FunctionDef):
        return slot.is_call and node.name.value == slot.name
    targets = [entry.target for entry in node.targets] if isinstance(node, cst.Assign) else []
    targets += [node.target] if isinstance(node, cst.AnnAssign) else []
    return not slot.is_call and any(isinstance(entry, cst.Name) and entry.value == slot.name for entry in targets)


def _makes_mesh(contract: Contract) -> bool:
    every = contract.device == "cpu"
    made = contract.kind in ("strategy", "arguments") and not contract.mesh_given
    return made and (every or not contract.strategies.isdisjoint({*HYBRID, "NO_SHARD"}))


def _edits(node: cst.BaseExpression, kind: str, contract: Contract, file: File) -> list[Edit]:
    """What one value that the definition gives becomes."""
    if kind == "strategy":
        plan = ShardPlan(call=cst.Call(node), arguments={"module": node}, device=Device(contract.device))
        plan.mesh = "given" if contract.mesh_given else None
        plan.strategy = Strategies(node)
        return [Meshes(plan, file).chosen(node, known_strategy(node, file) or "FULL_SHARD", plan.strategy)]
    if kind == "precision":
        return [Replace(node, _precision(node, file))]
    if kind == "offload":
        return [Replace(node, offload_policy(offloads(node, file), file))]
    test = None if is_none(node) else policy_test(node, file)
    return [Replace(node, as_function(test, node, bare=is_assigned(node, file)))]


def _precision(node: cst.BaseExpression, file: File) -> Build:
    fields = precision_fields(node, file)
    if fields is None:
        nothing = f"{file.ref('torch.distributed.fsdp.MixedPrecisionPolicy')}()"
        return lambda code: nothing
    return lambda code: policy_text(fields, file, code)
