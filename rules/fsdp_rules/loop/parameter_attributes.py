"""Rule for what programs note on parameters and look up after they are sharded."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import literal_text
from fsdp_rules.file.file import File
from fsdp_rules.model.parameters import sharded_parameter
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: What tensors have that is not called, and what DTensors, FSDP, DeepSpeed and quantizing libraries put on parameters.
OWN = re.compile(
    r"__\w+__|_(?:ddp|ds|dtensor|dynamo|fsdp|fp|full|is|local|mp|op|post|saved|shard|sharded|unpadded|view)_\w+"
    r"|_(?:backward_hooks|base|cdata|grad|grad_fn|handle|in_backward_optimizers|params|spec|version)"
    r"|ds_.*|data|device|device_mesh|dtype|full_tensor|grad|grad_dtype|grad_fn|imag|itemsize|layout|m?[TH]|main_grad"
    r"|is_(?:cpu|cuda|leaf|meta|mkldnn|nested|quantized|sparse|sparse_csr|xla|xpu)|names?|nbytes|ndim|output_nr"
    r"|placements|quant_state|quantized|real|requires_grad|retains_grad|shape|size|to_local|SCB|CB"
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
    visits = (cst.Call, cst.Attribute)
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
    # TODO(fsdp-migrate FSDP219): no_decay set before sharding is lost, because fully_shard replaces the parameters
    return [p for p in model.parameters() if getattr(p, "no_decay", False)]
"""

    def visit(self, node: cst.Call | cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """What is read of a wrapped model's parameters, by name or by ``getattr``, where it is wrapped already."""
        subject, name = _read(node, file)
        if subject is None or name is None or OWN.fullmatch(name):
            return
        if sharded_parameter(subject, file) is Certainty.NO or is_summoned(node, file) or _is_set(name, file):
            return
        yield Diagnosis(
            node,
            Level.MANUAL,
            f"{name} set before sharding is lost, because fully_shard replaces the parameters",
            "set it after fully_shard, find it by the parameter's name, or shard with fsdp_compat.shard(..., "
            "use_orig_params=True), which keeps it as FSDP1 did",
        )


def _read(node: cst.CSTNode, file: File) -> tuple[cst.BaseExpression | None, str | None]:
    """What ``node`` reads an attribute of, which it does not call, and the attribute's name."""
    if isinstance(node, cst.Attribute):
        parent = file.parent(node)
        is_read = not isinstance(parent, cst.AssignTarget | cst.Call | cst.Attribute)
        return (node.value, node.attr.value) if is_read else (None, None)
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Name) or len(node.args) < 2:
        return None, None
    text = node.args[1].value
    name = literal_text(text)
    is_asked = node.func.value in ("getattr", "hasattr")
    return (node.args[0].value, name) if is_asked and isinstance(name, str) else (None, None)


def _is_set(name: str, file: File) -> bool:
    """Whether ``name`` is put on parameters that are sharded already."""
    targets = (one.target for one in file.nodes(cst.AssignTarget))
    named = (one for one in targets if isinstance(one, cst.Attribute) and one.attr.value == name)
    return any(sharded_parameter(one.value, file) is not Certainty.NO for one in named)
