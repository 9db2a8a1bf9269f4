"""Rule for calls of a model with parameters that are given to it."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import before_methods, bind, called_on
from fsdp_rules.file.file import File
from fsdp_rules.model.program_wraps import wraps_of
from fsdp_rules.model.sharded import sharded_value
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

FUNCTIONS = frozenset({"torch.func.functional_call", "torch.nn.utils.stateless.functional_call"})
#: Methods of a model that give its own tensors, and what leaves the values of a tensor as they are.
OWN = frozenset({"named_buffers", "named_parameters", "state_dict"})
SAME = frozenset({"detach", "requires_grad_"})
WRITTEN = "FSDP1 writes these values into its shards, and computes with them afterwards"
IGNORED = "FSDP1 uses the model's own parameters here, and FSDP2 uses them if they are sharded, or raises an error"
ADVICE = (
    "if these are the model's own values, call the model. For other values, call it inside summon_full_params, or "
    "use an unsharded copy"
)


class FunctionalCalls(Rule):
    """torch.func.functional_call.

    Under FSDP1, a sharded model that is called with other parameters still computes with its own: its forward gathers
    the flat parameter over the given ones. With `use_orig_params=True`, a given tensor of a shard's shape is first
    written into the shard permanently. FSDP2 writes nothing, computes with its own parameters once it is sharded, and
    raises in its first forward. The two agree if the model gets its own parameters, and under `torch.vmap`.
    `torch.func.grad` and `jacrev` over a sharded model raise under FSDP1.
    """

    id = "FSDP240"
    name = "functional-calls"
    shim = True
    markers = ("functional_call",)
    what_to_test = "Compare the result of the call, and the parameters after it, with those of the old code."
    visits = (cst.Call,)
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def halved(net, batch):
    model = FSDP(net, use_orig_params=True)
    values = {name: value.detach() / 2 for name, value in model.named_parameters()}
    return torch.func.functional_call(model, values, (batch,))
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def halved(net, batch):
    model = fully_shard(net)
    values = {name: value.detach() / 2 for name, value in model.named_parameters()}
    # TODO(fsdp-migrate FSDP240): FSDP1 writes these values into its shards, and computes with them afterwards
    return torch.func.functional_call(model, values, (batch,))
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Every call that gives a sharded model parameters that are not its own."""
        if "fsdp1" not in file.project.flags:
            return
        if file.resolved(node.func) not in FUNCTIONS or is_summoned(node, file):
            return
        given = bind(node, ("module", "parameter_and_buffer_dicts", "args", "kwargs"))
        model = given.get("module") if given is not None else None
        if given is None or model is None:
            return
        held = sharded_value(model, file)
        if held is Certainty.NO or _is_own(given.get("parameter_and_buffer_dicts"), file.code(model), file):
            return
        wraps = wraps_of(model, file)
        originals = max((one.given(file).keeps_originals() for one in wraps), default=Certainty.MAYBE)
        start = "" if held is Certainty.YES else "if this model is sharded: "
        if originals is Certainty.NO:
            yield Diagnosis(node, Level.REVIEW, f"{start}{IGNORED}", ADVICE)
        else:
            yield Diagnosis(node, Level.MANUAL, f"{start}{WRITTEN}", ADVICE)


def _is_own(node: cst.BaseExpression | None, model: str, file: File, depth: int = 6) -> bool:
    """Whether ``node`` is made of what ``model`` has itself, the values left as they are."""
    if node is None or depth == 0:
        return False
    if isinstance(node, cst.Name):
        made = file.objects.origin(node)
        return made is not node and _is_own(made, model, file, depth - 1)
    if isinstance(node, cst.Dict):
        parts = [element.value for element in node.elements if isinstance(element, cst.StarredDictElement)]
        return len(parts) == len(node.elements) and all(_is_own(one, model, file, depth - 1) for one in parts)
    if isinstance(node, cst.Tuple | cst.List):
        return all(_is_own(one.value, model, file, depth - 1) for one in node.elements)
    if isinstance(node, cst.DictComp):
        target, value = node.for_in.target, before_methods(node.value, SAME)
        last = target.elements[-1].value if isinstance(target, cst.Tuple) else target
        return file.code(value) == file.code(last) and _is_own(_listed(node.for_in.iter), model, file, depth - 1)
    if not isinstance(node, cst.Call):
        return False
    if isinstance(node.func, cst.Name) and node.func.value == "dict" and len(node.args) == 1:
        return _is_own(node.args[0].value, model, file, depth - 1)
    owner = called_on(node, *OWN)
    return owner is not None and file.code(owner) == model


def _listed(node: cst.BaseExpression) -> cst.BaseExpression:
    """What ``values.items()`` lists; any other ``node`` itself."""
    return called_on(node, "items") or node
