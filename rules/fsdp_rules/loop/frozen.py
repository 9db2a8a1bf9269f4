"""Rule for parameters that are frozen or thawed while training goes on."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.loop.gathered import may_reshard_before
from fsdp_rules.model.kept_frozen import kept_frozen, later_change
from fsdp_rules.model.passes import Pass, last_passes
from fsdp_rules.model.program_wraps import carried_in
from fsdp_rules.model.resharding import reshard_before
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

KEEPS = "while a backward runs through a frozen model, FSDP1 keeps its gradients and adds them to the next ones"
UNSURE = "if this freezes whole units of a sharded model: "
CLEAR = (
    "clear them first: call the optimizer's zero_grad() right after its step(), in the old code too. Or shard with "
    "fsdp_compat.shard, which adds them like FSDP1"
)
LOST = "an eval forward leaves gathered parameters: the next reshard loses this change"


class FrozenLater(Rule):
    """requires_grad changed after sharding.

    After a forward without a backward (an evaluation) the units that FSDP2 does not reshard (the root, and all units
    under SHARD_GRAD_OP) still hold gathered parameters. A change of `requires_grad` then applies only to these: the
    next backward restores the sharded parameters as they were, and unfrozen parameters train for one step. FSDP1 with
    `use_orig_params=True` has one set of parameters. The rewrite reshards the units first, which makes the change
    permanent and has no effect on units that are already sharded. If no forward has run since the last backward, as
    right after wrapping, nothing is lost. Models sharded by `fsdp_compat` keep the change at any time.

    A model or unit may be completely frozen while a backward runs through it, such as the discriminator in the
    generator's step. FSDP1 keeps its old gradients and adds them to the next ones: always with `use_orig_params=False`,
    and under SHARD_GRAD_OP with `use_orig_params=True`. FSDP2 does not. `fsdp_compat.shard` does, and the
    output calls it if the same file wraps the model and certainly freezes it.
    """

    id = "FSDP218"
    name = "frozen-later"
    what_to_test = (
        "Evaluate, freeze or unfreeze, and train for two steps: the second step must change the "
        "parameters that the first one changed."
    )
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

    def visit(self, node: cst.AssignTarget | cst.Call, file: File) -> Iterable[Diagnosis]:
        """What changes parameters of a wrapped model in a loop, or in another function than the one that wraps it."""
        change = later_change(node, file)
        if change is None:
            return
        kept = next((one for one in kept_frozen(file.module, file) if one.place is node), None)
        if kept is not None and kept.kept is Certainty.MAYBE:
            yield Diagnosis(node, Level.REVIEW, UNSURE + KEEPS, CLEAR)
        elif kept is not None and not carried_in(kept.wraps, file):
            yield Diagnosis(node, Level.MANUAL, KEEPS, CLEAR)
        model, sure = change.model, change.is_sure
        place = change.loop or node
        passes = last_passes(place, file)
        if passes <= {Pass.BACKWARD, Pass.RESHARD}:
            return
        if (sure or Pass.FORWARD in passes) and may_reshard_before(place, model, file):
            text = (
                f"after an eval forward the next reshard would lose this change: {file.code(model)} is resharded first"
            )
            edits = (reshard_before(file.statement(place), model, file),)
            yield Diagnosis(node, Level.SAFE, text, edits=edits)
            return
        units = f"for unit in {file.code(model)}.modules(): if isinstance(unit, FSDPModule): unit.reshard()"
        yield Diagnosis(
            node,
            Level.MANUAL if sure else Level.REVIEW,
            LOST if sure else f"if this model is sharded: {LOST}",
            f"reshard first ({units}), or shard with fsdp_compat.shard, which keeps the change. If no forward "
            "has run since the last backward, nothing is lost.",
        )
