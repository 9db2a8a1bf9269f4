"""Rule for parameters that a training step does not use."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.construction._plan.around import REDUCES_UNUSED
from fsdp_rules.construction._plan.call_place import called_on, place_of
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

OLDER = "if your model has any, pass --torch 2.13 for set_reduce_scatter_unused_params(True), or use fsdp_compat.shard"
#: The call is a part of an expression, where no second statement can be written.
IN_EXPRESSION = (
    "if your model has any, assign this model to a name, and call set_reduce_scatter_unused_params(True) on it"
)


class UnusedParameters(Rule):
    """Unused parameters in a training step.

    FSDP1 reduces the gradients of a unit as one tensor, so that a parameter that a step does not use gets a gradient of
    zeros, and weight decay and momentum still move it. FSDP2 leaves `None`, and where ranks use different parameters of
    one unit (experts, modalities) it adds up gradients that do not belong together. The source does not show which
    parameters a step uses, so this is reported wherever a model is wrapped.

    `set_reduce_scatter_unused_params(True)` (torch 2.13) makes FSDP2 reduce zeros too, and is written where the project
    requires that torch, or `--torch 2.13` is given. `fsdp_compat.shard`, and code migrated with `--to shim`, do as
    FSDP1 in every version.
    """

    id = "FSDP121"
    name = "unused-parameters"
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    return FSDP(model)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    return fully_shard(model)
"""


def about_unused_parameters(call: cst.Call, file: File) -> Diagnosis:
    """What to say about a constructor that becomes ``fully_shard``."""
    can_reduce = file.settings.torch >= REDUCES_UNUSED
    if can_reduce and (place_of(call, file) or called_on(call, file)):
        return Diagnosis(
            call,
            Level.SAFE,
            "set_reduce_scatter_unused_params gives unused parameters zero gradients, as FSDP1 did",
            rule=UnusedParameters.id,
        )
    return Diagnosis(
        call,
        Level.INFO,
        "FSDP1 gave unused parameters zero gradients, FSDP2 gives them none: weight decay and momentum skip them",
        IN_EXPRESSION if can_reduce else OLDER,
        rule=UnusedParameters.id,
    )
