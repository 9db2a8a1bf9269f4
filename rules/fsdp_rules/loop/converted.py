"""Rule for models that are converted, or shared with other processes, once they are sharded."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.sharded import sharded, sharded_part
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.model.wrapping import model_of_parameters
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

CASTS = frozenset({"bfloat16", "double", "float", "half"})
SHARED = "share_memory() on a sharded model kills the process"
SHARE = "share the model before it is sharded, or remove the line: a shard belongs to one rank"
MIXED = "fully_shard takes one dtype per unit, and this part of a unit gets a different one"
SPLIT = "convert it before the model is sharded, and shard it separately"
ROUNDED = "assumes fp32 parameters: with lower precision, SGD steps round by the position of an element in its tensor"
COMPARE = "compare the losses of the first steps with those of FSDP1: bf16 and fp16 may differ by 1e-3"


class ConvertedModels(Rule):
    """Conversions of a sharded model: share_memory(), half() of a submodule, SGD steps in bf16.

    FSDP2 converts a whole sharded model as FSDP1 does, so training continues after `model.bfloat16()` with the same
    numbers. If a part gets a dtype different from the rest of its unit, the next forward fails; FSDP1's flat parameter
    undid the change. `share_memory()` of a DTensor on the CPU kills the process. In bf16 and fp16, torch's `add_(x,
    alpha=...)`, which SGD uses, rounds the last elements of a tensor differently, and FSDP1's tensors end at other
    elements. Such runs differ by about 1e-3 after a few steps, whichever way the model was converted.
    """

    id = "FSDP230"
    name = "converted-models"
    what_to_test = EFFECT
    visits = (cst.Call,)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    model = FSDP(model, use_orig_params=True)
    model.head.bfloat16()
    return model
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    fully_shard(model)
    # TODO(fsdp-migrate FSDP230): fully_shard takes one dtype per unit, and this part of a unit gets a different one
    model.head.bfloat16()
    return model
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Conversions of sharded models and their parts, and optimizers that round by place."""
        if "fsdp1" not in file.project.flags or is_summoned(node, file):
            return
        func = node.func
        if file.resolved(func) in ("torch.optim.SGD", "torch.optim.sgd.SGD"):
            yield from _stepped(node, file)
        elif isinstance(func, cst.Attribute):
            shares = func.attr.value == "share_memory"
            if not shares and not _is_cast(node, file):
                return
            held = sharded_part(func.value, file)
            if held is Certainty.NO or not (shares or sharded(func.value, file).certainty is Certainty.NO):
                return
            condition = "" if held is Certainty.YES else "if this model is sharded: "
            yield Diagnosis(node, Level.MANUAL, f"{condition}{SHARED if shares else MIXED}", SHARE if shares else SPLIT)


def _is_cast(call: cst.Call, file: File) -> bool:
    """Whether ``call`` gives the parameters of what it is called on another dtype."""
    name = last_name(call.func)
    given = [argument.value for argument in call.args]
    if name not in ("to", "type"):
        return name in CASTS and not given
    dtypes = [file.resolved(one) or "" for one in given]
    return any(
        full.startswith("torch.") and last_name(one).startswith(("float", "bfloat", "half", "double"))
        for full, one in zip(dtypes, given, strict=True)
    )


def _stepped(call: cst.Call, file: File) -> Iterable[Diagnosis]:
    """The assumption about an SGD of sharded parameters, in a project that trains in lower precisions."""
    model = model_of_parameters(call.args[0].value, file) if call.args else None
    if (
        model is not None
        and "low_precision" in file.project.flags
        and sharded(model, file).certainty is not Certainty.NO
    ):
        yield Diagnosis(call, Level.REVIEW, ROUNDED, COMPARE)
