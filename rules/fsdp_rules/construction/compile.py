"""Rule for ``torch.compile`` around a wrapped model."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import given_to
from fsdp_rules.file.file import File
from fsdp_rules.model.containing import containing
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrapping import wrapping_call
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: Both ways out: other names for the files that there are, or the old names from now on.
KEYS = (
    "load files of FSDP1 once without the prefix _orig_mod. (checkpoint convert removes it), or keep the names with "
    "block.compile() on each block before it is sharded"
)


LATE = "the numbers are the same, but state dict keys no longer have the prefix _orig_mod"
EARLY = f"this is sharded afterwards: {LATE}"


class Compile(Rule):
    """torch.compile of a sharded model.

    A sharded model can be compiled, and a compiled model can be sharded, with the same numbers under FSDP2, so nothing
    is rewritten. FSDP2's gathers break the graph at every unit. Compiling the blocks one by one before they are sharded
    (`block.compile()`, which keeps parameter names) compiles faster, and FSDP2 was designed for it. The functions of
    `torch.distributed.checkpoint.state_dict` remove the `_orig_mod.` of a compiled model, or block, from the names, so
    the keys of model and optimizer states differ from FSDP1's, whether compiling or wrapping comes first.
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

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """A sharded model, or what becomes one or a part of one."""
        if file.resolved(node.func) != "torch.compile" or not node.args:
            return
        model = node.args[0].value
        held = Certainty.YES if wrapping_call(model, file) is not None else sharded(model, file).certainty
        if held is not Certainty.NO:
            unsure = "" if held is Certainty.YES else "if this model is sharded: "
            message = f"{unsure}{LATE}"
            yield Diagnosis(node, Level.REVIEW, message, KEYS)
        elif _is_sharded_later(node, model, file):
            yield Diagnosis(node, Level.REVIEW, EARLY, KEYS)


def _is_sharded_later(compiled: cst.Call, model: cst.BaseExpression, file: File) -> bool:
    """Whether what is compiled here becomes a sharded model, or a part of one."""
    around = given_to(compiled, file)
    if around is not None and wrapping_call(around, file) is not None:
        return True
    statement = file.statement(compiled)
    given = [model, compiled]
    if isinstance(statement, cst.Assign):
        given += [entry.target for entry in statement.targets]
    elif around is not None:
        given += [one.value for one in around.args if one.value is not compiled]
    parts = (part for one in given for part in (one, *containing(one, file)))
    return any(value_of(part, file).given is not Certainty.NO for part in parts)
