"""Rule for ShardedTensor, FSDP1's form of a sharded state."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

#: Code that reads files, and code that takes or loads the states of models and optimizers.
READS = re.compile(r"\btorch\.load\(|\b(Unp|p)ickler?\b|\bFileSystemReader\b|\bload_file\(")
TAKES = re.compile(r"\.state_dict\(|state_dict_type|\boptim_state_dict")
SHARDED = "torch.distributed._shard.sharded_tensor"


class ShardedTensors(Rule):
    """ShardedTensor.

    FSDP1's sharded states have ShardedTensors if no `device_mesh` was given. FSDP2's states have `DTensor`s. A test for
    ShardedTensor is then silently false, and its branch is skipped: use `isinstance(value, DTensor)`.
    `value.to_local()` is this rank's part and `value.full_tensor()` the whole. Code that already handles DTensor uses
    that branch.
    """

    id = "FSDP312"
    name = "sharded-tensor"
    spelled = ("ShardedTensor", "torch.distributed._shard")
    what_to_test = RESUME
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
    # TODO(fsdp-migrate FSDP312): FSDP2's states have DTensors, so no value is a ShardedTensor
    return {name: value for name, value in state.items() if isinstance(value, ShardedTensor)}
"""

    def visit(self, node: cst.Name | cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """One verdict for each place that names the class."""
        if not file.project.may_trap(file.settings.traps):
            return
        full = file.resolved(node) or ""
        if not full.startswith(f"{SHARDED}.") or not full.endswith(".ShardedTensor") or _is_import(node, file):
            return
        if _is_annotation(node, file) or _only_reads(node, file):
            yield Diagnosis(
                node,
                Level.INFO,
                "files that FSDP1 wrote still have ShardedTensors",
                "no change needed while such files are read",
            )
            return
        if _knows_dtensor(node, file):
            yield Diagnosis(
                node,
                Level.REVIEW,
                "FSDP2's states have DTensors, so the DTensor branch next to this one runs",
                "remove the ShardedTensor branch once no FSDP1 file is read",
            )
            return
        yield Diagnosis(
            node,
            Level.MANUAL,
            "FSDP2's states have DTensors, so no value is a ShardedTensor",
            "test isinstance(value, DTensor): value.to_local() is this rank's part, value.full_tensor() the whole",
        )


def _is_annotation(node: cst.CSTNode, file: File) -> bool:
    return any(isinstance(ancestor, cst.Annotation) for ancestor in file.ancestors(node))


def _only_reads(node: cst.CSTNode, file: File) -> bool:
    """Whether the function around ``node``, or what calls it, reads files, and none of them takes a state."""
    function = file.function(node)
    if function is None:
        return False
    texts = {entry: file.code(entry) for entry in file.nodes(cst.FunctionDef)}
    found: set[cst.FunctionDef] = set()
    pending = [function]
    while pending:
        entry = pending.pop()
        if entry not in found:
            found.add(entry)
            pending += [one for one, text in texts.items() if re.search(rf"\b{entry.name.value}\b(?=\(|,)", text)]
    return any(READS.search(texts[one]) for one in found) and not any(TAKES.search(texts[one]) for one in found)


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
