"""Rule for what programs note on parameters and look up after they are sharded."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.parameters import sharded_parameter
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: What tensors have by themselves, and what DTensors, FSDP, DeepSpeed and quantizing libraries put on parameters.
OWN = re.compile(
    r"__\w+__|_(?:ddp|ds|dtensor|dynamo|fsdp|fp|full|is|local|mp|op|post|saved|shard|sharded|unpadded|view)_\w+"
    r"|_(?:backward_hooks|base|cdata|grad|grad_fn|handle|in_backward_optimizers|params|spec|version)"
    r"|ds_.*|data|device|device_mesh|dtype|full_tensor|grad|grad_fn|is_cuda|is_leaf|is_meta|main_grad|name|ndim"
    r"|placements|quant_state|quantized|requires_grad|shape|size|to_local|SCB|CB"
)


class ParameterAttributes(Rule):
    """Custom attributes of sharded parameters (getattr(p, "no_decay", False)).

    Attributes set on parameters before sharding are lost: `fully_shard` replaces the parameters. FSDP1 with
    `use_orig_params=True` kept them, and `fsdp_compat` copies them to the new parameters. A `getattr` default is then
    silently used, for weight decay for example. Attributes set after sharding are kept.
    """

    id = "FSDP219"
    name = "parameter-attributes"
    what_to_test = "Print the parameter groups and compare them with those of the old code."
    visits = (cst.Call,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def groups(net):
    model = FSDP(net, use_orig_params=True)
    return [p for p in model.parameters() if getattr(p, "no_decay", False)]
"""
    after = """
from torch.distributed.fsdp import fully_shard

def groups(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP219): no_decay set before sharding is lost, since fully_shard replaces the parameters
    return [p for p in model.parameters() if getattr(p, "no_decay", False)]
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """``getattr`` and ``hasattr`` of a wrapped model's parameters, where it is wrapped already."""
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Name) or len(node.args) < 2:
            return
        text = node.args[1].value
        name = text.evaluated_value if isinstance(text, cst.SimpleString) else None
        if node.func.value not in ("getattr", "hasattr") or not isinstance(name, str) or OWN.fullmatch(name):
            return
        if sharded_parameter(node.args[0].value, file) is Certainty.NO or is_summoned(node, file):
            return
        yield Diagnosis(
            node,
            Level.MANUAL,
            f"{name} set before sharding is lost, since fully_shard replaces the parameters",
            "set it after fully_shard, find it by the parameter's name, or shard with fsdp_compat.shard(..., "
            "use_orig_params=True), which keeps it as FSDP1 did",
        )
