"""Rule for parameters that are frozen or thawed while training goes on."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.loop._frozen_whole import keeps_gradients
from fsdp_rules.loop.gathered import may_reshard_before
from fsdp_rules.model.containing import containing
from fsdp_rules.model.guessed import as_guessed
from fsdp_rules.model.passes import Pass, last_passes
from fsdp_rules.model.resharding import reshard_before
from fsdp_rules.model.sharded import sharded, sharded_owner, sharded_part
from fsdp_rules.model.wrapping import assignments, may_wrap, model_of_parameter
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: Methods of models that change ``requires_grad`` of their parameters, by what people call them.
FREEZES = re.compile(r"(^|_)(un)?freeze(_|$)|^set_(requires_grad|trainable)(_|$)")
LOST = "an eval forward leaves gathered parameters: the next reshard loses this change"


class FrozenLater(Rule):
    """requires_grad changed after sharding.

    After a forward without a backward (an evaluation) the units that FSDP2 does not reshard (the root, and all units
    under SHARD_GRAD_OP) still hold gathered parameters. A change of `requires_grad` then applies only to these: the
    next backward restores the sharded parameters as they were, and what was unfrozen trains for one step. FSDP1 with
    `use_orig_params=True` has one set of parameters. The units are resharded first, which makes the change permanent
    and does nothing where they are sharded already. If no forward has run since the last backward, as right after
    wrapping, nothing is lost. Models sharded by `fsdp_compat` keep the change at any time.

    A model, or a unit, that is frozen whole while a backward runs through it (the discriminator, in the step of the
    generator) keeps its old gradients under FSDP1, which adds them to the next ones: always with
    `use_orig_params=False`, and under SHARD_GRAD_OP with `use_orig_params=True`. FSDP2 does not; models sharded by
    `fsdp_compat` do.
    """

    id = "FSDP218"
    name = "frozen-later"
    what_to_test = "Evaluate, freeze or unfreeze, and train for two steps: the second must change what the first did."
    visits = (cst.AssignTarget, cst.Call)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(net, epochs):
    model = FSDP(net, use_orig_params=True)
    for epoch in range(epochs):
        for parameter in model.parameters():
            parameter.requires_grad = epoch > 0
        run(model)
"""
    after = """
from torch.distributed.fsdp import FSDPModule, fully_shard

def train(net, epochs):
    model = fully_shard(net)
    for epoch in range(epochs):
        for unit in model.modules():
            if isinstance(unit, FSDPModule):
                unit.reshard()
        for parameter in model.parameters():
            parameter.requires_grad = epoch > 0
        run(model)
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """What changes parameters of a wrapped model in a loop, or in another function than the one that wraps it."""
        found = _changed(node, file)
        if found is None:
            return
        model = sharded_owner(found[0], file)
        sure = model is not None
        if model is None and sharded_part(found[0], file) is Certainty.MAYBE:
            around = (found[0], *containing(found[0], file))
            model = next((one for one in around if sharded(one, file).certainty is not Certainty.NO), found[0])
        if model is None or not _is_later(node, found[1], file):
            return
        kept = keeps_gradients(node, found[0], found[1] if isinstance(found[1], cst.For) else None, file)
        if kept is not None:
            yield kept
        place = found[1] or node
        passes = last_passes(place, file)
        if passes <= {Pass.BACKWARD, Pass.RESHARD}:
            return
        if (sure or Pass.FORWARD in passes) and may_reshard_before(place, model, file):
            text = (
                f"after an eval forward the next reshard would lose this change: {file.code(model)} is resharded first"
            )
            edits = (reshard_before(file.statement(place), model, file),)
            yield as_guessed(Diagnosis(node, Level.SAFE, text, edits=edits), model, file)
            return
        units = f"for unit in {file.code(model)}.modules(): if isinstance(unit, FSDPModule): unit.reshard()"
        yield Diagnosis(
            node,
            Level.MANUAL if sure else Level.REVIEW,
            LOST if sure else f"if this model is sharded: {LOST}",
            f"reshard first ({units}), or shard with fsdp_compat.shard, which keeps the change. If no forward "
            "has run since the last backward, nothing is lost.",
        )


def _changed(node: cst.CSTNode, file: File) -> tuple[cst.BaseExpression, cst.CSTNode | None] | None:
    """The model (or part of one) that ``node`` freezes or thaws, and the loop over its parameters if there is one."""
    target = node.target if isinstance(node, cst.AssignTarget) else node.func if isinstance(node, cst.Call) else None
    if not isinstance(target, cst.Attribute):
        return None
    name = target.attr.value
    if isinstance(node, cst.Call) and FREEZES.search(name):
        return target.value, None
    if name != ("requires_grad_" if isinstance(node, cst.Call) else "requires_grad"):
        return None
    model = model_of_parameter(target.value, file)
    if model is None:
        return (target.value, None) if isinstance(node, cst.Call) else None
    return model, next((entry for entry in file.ancestors(node) if isinstance(entry, cst.For)), None)


def _is_later(node: cst.CSTNode, own: cst.CSTNode | None, file: File) -> bool:
    """Whether a forward may have run before ``node``: its function does not wrap the model, or it stands in a loop."""
    scope = file.scope(node)
    if not any(may_wrap(entry.value, file) for entry in assignments(file) if file.scope(entry) == scope):
        return True
    around = file.ancestors(node)
    return any(isinstance(entry, cst.For | cst.While) and entry is not own for entry in around)
