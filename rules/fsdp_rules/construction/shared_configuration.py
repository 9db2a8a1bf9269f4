"""Rule for definitions that give FSDP1's configuration to wraps in other functions and files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.construction._plan.annotations import annotation_edits
from fsdp_rules.construction._plan.argument_dicts import argument_dict
from fsdp_rules.construction._plan.argument_edits import argument_edits, is_dropped
from fsdp_rules.construction._plan.class_uses import field_slot, uses_of_class
from fsdp_rules.construction._plan.contracts import fits, values_of
from fsdp_rules.construction._plan.member_writes import field_of, given_by
from fsdp_rules.construction._plan.meshes import Meshes
from fsdp_rules.construction._plan.offload import offload_policy, offloads
from fsdp_rules.construction._plan.plan import Device, ShardPlan
from fsdp_rules.construction._plan.policy_test import as_function, is_assigned, parts, policy_test
from fsdp_rules.construction._plan.policy_text import policy_text
from fsdp_rules.construction._plan.precision_fields import precision_fields
from fsdp_rules.construction._plan.slots import definition, writes_of_self
from fsdp_rules.construction._plan.strategies import Strategies, known_strategy
from fsdp_rules.construction._plan.unit_arguments import UNITS, of_slot, read_by_units, unit_edits
from fsdp_rules.file.expressions import is_none
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.strategy_names import HYBRID
from fsdp_rules.project.configured import Contract, Slot
from fsdp_rules.verdict.diagnosis import Build, Diagnosis, Edit, Replace, Taken
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.sentence import sentence

BECOMES = {
    "strategy": "a sharding strategy becomes the equivalent arguments of fully_shard",
    "precision": "a MixedPrecision becomes a MixedPrecisionPolicy",
    "arguments": "FSDP1's arguments become those of fully_shard",
    "offload": "a CPUOffload becomes an OffloadPolicy",
    "units": "the arguments of a unit become those of fully_shard",
    "policy": "a wrap policy becomes a function that tests a module",
}


class SharedConfiguration(Rule):
    """Configuration from another definition.

    A strategy, a `MixedPrecision`, a `CPUOffload` or a wrap policy may come from a function or method (alone or in a
    tuple), a module variable, a class or dataclass field, or a dictionary. The definition changes together with its
    annotations and all wraps that use it, in any file, if this tool can follow every use to a wrap that becomes
    `fully_shard`. Otherwise nothing changes. In the same way, a returned dictionary of FSDP1's arguments becomes one of
    `fully_shard`'s arguments.
    """

    id = "FSDP123"
    name = "shared-configuration"
    moves_together = True
    visits = (cst.FunctionDef, cst.ClassDef, cst.Assign, cst.AnnAssign, cst.Call)
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

    def visit(
        self, node: cst.FunctionDef | cst.ClassDef | cst.Assign | cst.AnnAssign | cst.Call, file: File
    ) -> Iterable[Diagnosis]:
        """What the definition becomes, where all of its uses do."""
        if not file.project.configured:
            return
        if isinstance(node, cst.Call):
            yield from _given_from_outside(node, file)
            return
        if file.scope(node):
            return
        for slot, contract in sorted(file.project.configured.items()):
            if slot.path != file.path or not _defines(node, slot) or contract.kind == "test":
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
        if slot.part == UNITS:
            found = of_slot(slot, file)
            edits, consumed = unit_edits(found, file), tuple(read_by_units(found, file))
        else:
            edits = [edit for node, kind in own for edit in _edits(node, kind, contract, file)]
            edits += {edit.node: edit for edit in _annotated(slot, [node for node, _ in own], file)}.values()
            consumed = ()
        edits += argument_edits(held, contract, file) if held is not None else []
        consumed += tuple(
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
        assumed = [f"assumes no code outside the given paths uses {slot.name}"]
        if slot.is_call and _makes_mesh(contract):
            assumed.append("assumes a process group exists when it is called")
        message = sentence(BECOMES[contract.kind], *assumed)
        at = held.writes[0].value if held is not None else own[0][0]
        claims = tuple(node for node, _ in own)
        yield Diagnosis(at, Level.REVIEW, message, "", tuple(edits), claims, consumed, gives=(slot,))


def _given_from_outside(call: cst.Call, file: File) -> Iterable[Diagnosis]:
    """What a call gives a field whose definition changes."""
    for slot, contract in sorted(file.project.configured.items()):
        value = given_by(call, slot, file) if contract.converted else None
        found = fits(value, contract, file) if value is not None else ()
        if value is not None and found:
            edits = tuple(edit for leaf in found for edit in _edits(leaf.node, contract.kind, contract, file))
            claims = tuple(leaf.node for leaf in found)
            yield Diagnosis(
                value,
                Level.SAFE,
                BECOMES[contract.kind],
                edits=edits,
                claims=claims,
                takes=(Taken(value, slot, writes=True),),
            )


def _annotated(slot: Slot, values: list[cst.BaseExpression], file: File) -> Iterator[Edit]:
    """What the annotations of the definition become."""
    owner, name = field_of(slot)
    function = definition(slot.name, file)
    if function is not None:
        yield from annotation_edits(function.returns, slot.part, file)
        return
    places = [entry.statement for entry in file.bindings.found.get((owner, name), [])]
    places += [statement for statement, _ in writes_of_self(owner, name, file)] if owner else []
    for statement in places:
        if isinstance(statement, cst.AnnAssign):
            made = {edit.node: edit for edit in annotation_edits(statement.annotation, "", file)}
            whole = statement.annotation.annotation
            if statement.value in values and _is_of_class(statement.value, file):
                made[whole] = _class_variable(whole, made.get(whole), file)
            yield from made.values()


def _is_of_class(value: cst.BaseExpression, file: File) -> bool:
    """Whether a dictionary in the place of ``value``, a field of a dataclass, has to be the class's own."""
    slot = field_slot(value, file) if known_strategy(value, file) is not None else None
    return slot is not None and uses_of_class(slot, file).by_itself


def _class_variable(annotation: cst.BaseExpression, named: Replace | None, file: File) -> Replace:
    """The annotation of what the class is asked for itself, where a factory of objects would leave it nothing."""
    variable = file.ref("typing.ClassVar")
    return Replace(annotation, lambda code: f"{variable}[{named.build(code) if named else code(annotation)}]")


def _defines(node: cst.CSTNode, slot: Slot) -> bool:
    owner, _ = field_of(slot)
    if owner or isinstance(node, cst.ClassDef):
        return isinstance(node, cst.ClassDef) and node.name.value == owner
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
        made = Meshes(plan, file).chosen(node, known_strategy(node, file) or "FULL_SHARD", plan.strategy)
        slot = field_slot(node, file)
        return [made if slot is None or uses_of_class(slot, file).by_itself else _as_default(made, file)]
    if kind == "precision":
        return [Replace(node, _precision(node, file))]
    if kind == "offload":
        return [Replace(node, offload_policy(offloads(node, file), file))]
    test = None if is_none(node) else policy_test(node, file)
    return [Replace(node, as_function(test, node, bare=is_assigned(node, file)))]


def _as_default(made: Replace, file: File) -> Replace:
    """A dictionary as the default of a dataclass's field, which takes no object that may change."""
    field = file.ref("dataclasses.field")

    def build(code: Code) -> str:
        value = made.build(code)
        return f"{field}(default_factory={'dict' if value == '{}' else f'lambda: {value}'})"

    return Replace(made.node, build)


def _precision(node: cst.BaseExpression, file: File) -> Build:
    fields = precision_fields(node, file)
    if fields is None:
        nothing = f"{file.ref('torch.distributed.fsdp.MixedPrecisionPolicy')}()"
        return lambda code: nothing
    return lambda code: policy_text(fields, file, code)
