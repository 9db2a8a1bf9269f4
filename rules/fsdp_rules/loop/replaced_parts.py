"""Rule for modules and parameters that are exchanged or added once the model is sharded."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.sharded import sharded, sharded_part
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

#: Methods of modules that take another part, or make one.
METHODS = frozenset({"add_module", "register_module", "register_parameter", "resize_token_embeddings", "set_submodule"})
#: What gives a part to the object itself, where FSDP1's wrapper passes other methods on to its model.
SETS = frozenset({"add_module", "register_module", "register_parameter", "setattr"})
#: Those of ModuleList and ModuleDict, which lists and dictionaries have too.
GROWS = frozenset({"append", "extend", "insert", "update"})
#: Functions that put other parameters into a module.
EXCHANGES = (
    "peft.get_peft_model",
    "peft.inject_adapter_in_model",
    "torch.nn.utils.parametrizations.",
    "torch.nn.utils.parametrize.",
    "torch.nn.utils.prune.",
    "torch.nn.utils.remove_spectral_norm",
    "torch.nn.utils.remove_weight_norm",
    "torch.nn.utils.spectral_norm",
    "torch.nn.utils.weight_norm",
    "torch.utils.swap_tensors",
)
HARMLESS = ("cached", "is_parametrized", "is_pruned")
OWN = "FSDP2 now uses this new, unsharded part (FSDP1 gave it to the wrapper alone)"
PLAIN = "the new part is not sharded: optimizers and clipping cannot mix it with DTensors"
ADVICE = "change the parts of the model before it is sharded, or shard the new part with fully_shard and the same mesh"


class ReplacedParts(Rule):
    """Parts that are exchanged after sharding.

    FSDP1's wrapper takes an attribute for itself, so that `model.head = ...` exchanges nothing in the model inside it.
    FSDP2's model is that model, and uses the new part. What is added to one of its modules is neither sharded nor
    reduced, under both. FSDP2's other parameters are DTensors: foreach functions, clipping and some optimizers raise
    where they get both kinds. Weight norm, parametrizations and pruning need a module's full parameters, and so come
    before the sharding.
    """

    id = "FSDP229"
    name = "replaced-parts"
    words = (
        r"\b(add_module|register_module|register_parameter|resize_token_embeddings|set_submodule|setattr)\(",
        r"\b(\w*(weight|spectral)_norm|orthogonal|prune|parametri\w+|swap_tensors|get_peft_model)\b",
        r"\.\w+\s*=\s*[\w.]*\b(nn|torch)\.",
        r"_(modules|parameters)\[|\.(append|extend|insert|update)\([\w.]*\b(nn|torch)\.",
    )
    what_to_test = EFFECT
    visits = (cst.Assign, cst.Call)
    shim = True
    before = """
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model, classes):
    model = FSDP(model, use_orig_params=True)
    model.head = nn.Linear(64, classes)
    return model
"""
    after = """
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

def build(model, classes):
    fully_shard(model)
    # TODO(fsdp-migrate FSDP229): FSDP2 now uses this new, unsharded part (FSDP1 gave it to the wrapper alone)
    model.head = nn.Linear(64, classes)
    return model
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Assignments of new parts to a sharded model, and calls that exchange some."""
        if "fsdp1" not in file.project.flags or not isinstance(node, cst.Assign | cst.Call):
            return
        owner = _assigned(node, file) if isinstance(node, cst.Assign) else _exchanged(node, file)
        held = Certainty.NO if owner is None or is_summoned(node, file) else sharded_part(owner, file)
        if held is not Certainty.NO:
            place = node.targets[0].target if isinstance(node, cst.Assign) else node
            is_set = isinstance(node, cst.Assign) or last_name(node.func) in SETS
            text = OWN if is_set and owner is not None and sharded(owner, file).certainty is not Certainty.NO else PLAIN
            message = text if held is Certainty.YES else f"if this model is sharded: {text}"
            yield Diagnosis(place, Level.MANUAL, message, ADVICE)


def _assigned(node: cst.Assign, file: File) -> cst.BaseExpression | None:
    """The module that the assignment ``node`` gives a new part."""
    target = node.targets[0].target
    if not isinstance(target, cst.Attribute | cst.Subscript) or not _is_a_part(node.value, file):
        return None
    # A weight or a bias is a parameter that the module has, which FSDP217 reports.
    return None if isinstance(target, cst.Attribute) and target.attr.value in ("bias", "weight") else target.value


def _exchanged(call: cst.Call, file: File) -> cst.BaseExpression | None:
    """The module, or parameter, whose parts ``call`` exchanges."""
    func, name = call.func, last_name(call.func)
    if isinstance(func, cst.Attribute) and name in METHODS:
        return func.value
    if isinstance(func, cst.Attribute) and name in GROWS:
        return func.value if any(_is_a_part(argument.value, file) for argument in call.args) else None
    full = file.resolved(func) or ""
    if full.startswith(EXCHANGES) and name not in HARMLESS and call.args:
        return call.args[0].value
    is_set = name == "setattr" and len(call.args) == 3 and _is_a_part(call.args[2].value, file)
    return call.args[0].value if is_set and "weight" not in file.code(call.args[1].value) else None


def _is_a_part(value: cst.BaseExpression, file: File) -> bool:
    """Whether ``value`` makes a module or a parameter."""
    made = file.value(value)
    if not isinstance(made, cst.Call):
        return False
    full = file.resolved(made.func) or ""
    return full.startswith(("torch.nn.", "transformers.")) and last_name(made.func)[:1].isupper()
