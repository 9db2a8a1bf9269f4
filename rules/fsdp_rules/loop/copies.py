"""Rule for copies of a wrapped model."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import only_key
from fsdp_rules.file.file import File
from fsdp_rules.model.sharded import sharded_value
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

COPIES = ("copy.deepcopy", "torch.optim.swa_utils.AveragedModel")
RAISES = "deepcopy of a sharded model raises an error"


class Copies(Rule):
    """deepcopy of a sharded model (EMA).

    Neither FSDP1 nor FSDP2 models can be copied: FSDP1 raises a TypeError, FSDP2 an AssertionError. A copy made before
    sharding, and sharded the same way, has shards that correspond one to one to the model's.
    """

    id = "FSDP211"
    name = "copies"
    what_to_test = "Compare the averaged weights with those of the old code after a few steps."
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
    # TODO(fsdp-migrate FSDP211): deepcopy of a sharded model raises an error
    average = deepcopy(model)
    return model, average
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """List copies made where the model is wrapped for certain."""
        if not node.args or file.resolved(node.func) not in COPIES:
            return
        model = node.args[0].value
        held = sharded_value(model, file)
        if held is not Certainty.NO and not _is_data(model, file):
            yield Diagnosis(
                node,
                Level.MANUAL,
                RAISES if held is Certainty.YES else f"if this model is sharded: {RAISES}",
                "copy the model before it is sharded and shard the copy the same way. Then update the copy's "
                "parameters from the model's pairwise under torch.no_grad(): both are DTensors with the same "
                "placements.",
            )


def _is_data(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is a dictionary of numbers and lists: the function reads elements of its elements by keys.

    A dictionary of models has elements that are called, or asked for attributes.
    """
    text, function = file.code(node), file.function(node)
    if function is None or not isinstance(node, cst.Name | cst.Attribute):
        return False
    reads = [file.parent(one) for one in file.inside(function.body, cst.Subscript) if _is_by_key(one, text, file)]
    used = any(isinstance(one, cst.Attribute | cst.Call) for one in reads)
    return not used and any(isinstance(one, cst.Subscript | cst.BinaryOperation | cst.Comparison) for one in reads)


def _is_by_key(node: cst.Subscript, text: str, file: File) -> bool:
    """Whether ``node`` takes an element of what is called ``text`` by a key that is a literal text."""
    return isinstance(only_key(node), cst.SimpleString) and file.code(node.value) == text
