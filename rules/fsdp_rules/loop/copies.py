"""Rule for copies of a wrapped model."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.wrapping import held_at
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

COPIES = ("copy.deepcopy", "torch.optim.swa_utils.AveragedModel")


class Copies(Rule):
    """A copy of a model that is sharded already, as moving averages make it.

    Neither FSDP1 nor FSDP2 models can be copied: the one raises a TypeError, the other an AssertionError. A copy
    made before sharding, and sharded the same way, has shards that match the model's one to one.
    """

    id = "FSDP211"
    name = "copies"
    visits = (cst.Call,)
    shim = True
    before = """
from copy import deepcopy

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    model = FSDP(model)
    average = deepcopy(model)
    return model, average
"""
    after = """
from copy import deepcopy

from torch.distributed.fsdp import fully_shard

def build(model):
    fully_shard(model)
    # TODO(fsdp-migrate FSDP211): a sharded model cannot be copied
    average = deepcopy(model)
    return model, average
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """List copies made where the model is wrapped for certain."""
        if not isinstance(node, cst.Call) or not node.args or file.resolved(node.func) not in COPIES:
            return
        if held_at(node.args[0].value, file) is Certainty.YES:
            yield Diagnosis(
                node,
                Level.MANUAL,
                "a sharded model cannot be copied",
                "copy it before it is sharded, shard the copy the same way, and update the copy's parameters from the "
                "model's pair by pair under torch.no_grad(); both are DTensors with the same placements",
            )
