"""Rule for ``torch.compile`` around a wrapped model."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrapping import wrapping_call
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class Compile(Rule):
    """A whole wrapped model handed to `torch.compile`, or a compiled model that is wrapped.

    Both run under FSDP2 with the same numbers, so nothing is rewritten. FSDP2's gathers break the graph at every unit;
    compiling the blocks one by one before they are sharded (`block.compile()`, which keeps parameter names) takes less
    time to compile, and is what FSDP2 was built for. The functions of `torch.distributed.checkpoint.state_dict` take
    the `_orig_mod.` of a compiled model out of the names, so a state has other keys than FSDP1's had.
    """

    id = "FSDP120"
    name = "compile"
    visits = (cst.Call,)
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    return torch.compile(FSDP(model))
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def build(model):
    return torch.compile(fully_shard(model))
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Say where the order of compiling and sharding is worth a thought."""
        if not isinstance(node, cst.Call) or file.resolved(node.func) != "torch.compile" or not node.args:
            return
        model = node.args[0].value
        parent = file.parent(file.parent(node) or node)
        if wrapping_call(model, file) is not None or sharded(model, file).certainty is Certainty.YES:
            yield Diagnosis(
                node,
                Level.INFO,
                "the whole sharded model is compiled; the numbers are the same, and names that get_model_state_dict "
                "takes from it have no _orig_mod. in front, which they had in FSDP1's states",
                "block.compile() on each block before it is sharded compiles faster and keeps parameter names",
            )
        elif parent is not None and wrapping_call(parent, file) is not None:
            yield Diagnosis(
                node,
                Level.INFO,
                "a compiled model is sharded; its parameter names start with _orig_mod., as they did before",
                "model.compile() compiles in place and keeps parameter names",
            )
