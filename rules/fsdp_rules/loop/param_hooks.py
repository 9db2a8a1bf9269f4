"""Rule for gradient hooks on the parameters of a wrapped model."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.parameters import sharded_parameter
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

MESSAGES = {
    "register_hook": "a hook on a sharded parameter never runs under FSDP2",
    "register_post_accumulate_grad_hook": "this hook runs once per parameter and backward under FSDP2",
}
ADVICE = {
    "register_hook": (
        "delete it to keep the numbers: with use_orig_params=True it never ran under FSDP1 either. To run it, "
        "use register_post_accumulate_grad_hook, which gets the parameter with its reduced gradient."
    ),
    "register_post_accumulate_grad_hook": (
        "delete it to keep the numbers: with use_orig_params=True it never ran under FSDP1. If FSDP1 had flat "
        "parameters, it ran once per unit: check what it does to a DTensor."
    ),
}


class ParameterHooks(Rule):
    """Hooks on parameters (register_hook).

    Autograd never sees the sharded parameters of FSDP2, so a hook registered by `register_hook` does not run (nor did
    it under FSDP1 with `use_orig_params=True`). `register_post_accumulate_grad_hook` runs under FSDP2, after the
    gradient is reduced, whereas FSDP1 ran it only for flat parameters.
    """

    id = "FSDP212"
    name = "parameter-hooks"
    what_to_test = EFFECT
    visits = (cst.Call,)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model, clamp):
    model = FSDP(model)
    for parameter in model.parameters():
        parameter.register_hook(clamp)
    return model
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model, clamp):
    fully_shard(model)
    for parameter in model.parameters():
        # TODO(fsdp-migrate FSDP212): a hook on a sharded parameter never runs under FSDP2
        parameter.register_hook(clamp)
    return model
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """List hooks on what runs over a wrapped model's parameters."""
        if not isinstance(node.func, cst.Attribute):
            return
        method = node.func.attr.value
        if method not in MESSAGES:
            return
        if sharded_parameter(node.func.value, file) is not Certainty.NO:
            yield Diagnosis(node, Level.MANUAL, MESSAGES[method], ADVICE[method])
