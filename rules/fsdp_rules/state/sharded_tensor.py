"""Rule for ShardedTensor, FSDP1's form of a sharded state."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

SHARDED = "torch.distributed._shard.sharded_tensor"


class ShardedTensors(Rule):
    """Code that handles `ShardedTensor`, which FSDP1's sharded states hold where no `device_mesh` was given.

    FSDP2's states hold `DTensor`. A test for ShardedTensor is then false without a word, so that whatever it guards
    is skipped: `isinstance(value, DTensor)` asks the same, `value.to_local()` is this rank's part and
    `value.full_tensor()` the whole. Code that also knows DTensor goes that way from now on.
    """

    id = "FSDP312"
    name = "sharded-tensor"
    visits = (cst.Name, cst.Attribute)
    shim = True
    before = """
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def local_parts(net):
    model = FSDP(net)
    state = model.state_dict()
    return {name: value for name, value in state.items() if isinstance(value, ShardedTensor)}
"""
    after = """
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

def local_parts(net):
    model = fully_shard(net)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    # TODO(fsdp-migrate FSDP312): FSDP2's states hold DTensor, so nothing is a ShardedTensor any more
    return {name: value for name, value in state.items() if isinstance(value, ShardedTensor)}
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """One verdict for each place that names the class."""
        if not isinstance(node, cst.Name | cst.Attribute) or not file.may_trap:
            return
        full = file.resolved(node) or ""
        if not full.startswith(f"{SHARDED}.") or not full.endswith(".ShardedTensor") or _is_import(node, file):
            return
        if _knows_dtensor(node, file):
            yield Diagnosis(
                node,
                Level.INFO,
                "FSDP2's states hold DTensor, so the code for DTensor beside this one is what runs",
                "remove the part about ShardedTensor once no file of FSDP1 is read any more",
            )
            return
        yield Diagnosis(
            node,
            Level.MANUAL,
            "FSDP2's states hold DTensor, so nothing is a ShardedTensor any more",
            "ask isinstance(value, DTensor); value.to_local() is this rank's part, value.full_tensor() the whole",
        )


def _is_import(node: cst.CSTNode, file: File) -> bool:
    return any(isinstance(ancestor, cst.Import | cst.ImportFrom) for ancestor in file.ancestors(node))


def _knows_dtensor(node: cst.CSTNode, file: File) -> bool:
    """Whether the function around ``node``, or the module where there is none, also names DTensor."""
    around = file.function(node)
    return any(
        (dotted(name) or "").rpartition(".")[2] == "DTensor" and file.function(name) is around
        for kind in (cst.Name, cst.Attribute)
        for name in file.nodes(kind)
        if not _is_import(name, file)
    )
