"""Rule for parameters that a training step does not use."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class UnusedParameters(Rule):
    """Parameters that a training step does not use, beside others of the same unit that it does.

    FSDP1 reduces the gradients of a unit as one tensor, so that what a step leaves unused gets a gradient of zeros, and
    weight decay and momentum move it all the same. FSDP2 leaves `None`, and where ranks use different parameters of
    one unit (experts, modalities) it adds up gradients that do not belong together. Which parameters a step uses is
    not seen in the source, so this is said wherever a model is wrapped.

    `set_reduce_scatter_unused_params(True)` on each unit (torch 2.13) lets FSDP2 reduce zeros too;
    `fsdp_compat.shard`, and code moved with `--to shim`, do as FSDP1 in every version.
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


def about_unused_parameters(call: cst.Call) -> Diagnosis:
    """What to say about a constructor that becomes ``fully_shard``."""
    return Diagnosis(
        call,
        Level.INFO,
        "parameters that a step leaves unused, beside used ones of their unit, had gradients of zeros and now have "
        "none: weight decay and momentum no longer move them",
        "if your model has such parameters, call set_reduce_scatter_unused_params(True) on every unit (torch 2.13), "
        "or use fsdp_compat.shard",
        rule=UnusedParameters.id,
    )
