"""Rule for ``state_dict`` and ``load_state_dict`` of a wrapped model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import call_of, last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.flowing import known_as, value_of
from fsdp_rules.model.given_by_call import is_given_by_call
from fsdp_rules.model.sharded import sharded, sharded_part
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project import texts
from fsdp_rules.project.project import Certainty
from fsdp_rules.state._governing.receiver import NO_MODEL
from fsdp_rules.state._writing.verdict import verdicts
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

GIVEN = " may be a sharded model: this tool does not follow the result of a call into its state"
NAMED = "assign it to a variable, get the state dict from the variable, and run this tool again"
#: The method by which models of transformers, diffusers and peft write the state that they take of themselves.
SAVES = "save_pretrained"
OWN = "save_pretrained() writes the model's own state, which has DTensors under FSDP2"
GIVE = (
    "pass state_dict=get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)), "
    "called on all ranks"
)
PART = " may be a part of a sharded model, whose state has DTensors under FSDP2"
OF_PART = (
    "if it is, get the state with get_model_state_dict, or load it with set_model_state_dict, with "
    "StateDictOptions(full_state_dict=True)"
)


class ModelState(Rule):
    """state_dict() and load_state_dict() of a sharded model.

    FSDP1 gathers: outside any context, every rank gets the full state. FSDP2's own methods return DTensors, so
    `get_model_state_dict` and `set_model_state_dict` replace them, with the options of the context or of FSDP1's
    default. A full state is sent from rank 0 to all others, which also keeps the check for missing names that
    `full_state_dict=True` alone would lose. In CPU memory, only global rank 0 gets the full state. FSDP1 gave it to the
    first rank of the model's `process_group`, so with several groups the other first ranks now get nothing. A model
    that is loaded before it is wrapped is not rewritten. If the same call may also load a model that is not sharded,
    the options test `torch.distributed.is_initialized()`: without a process group, it is a plain load. These cases are
    unchanged and are reported: a load that only rank 0 reaches, a state dict that only rank 0 gets, the state dict of
    an unnamed model that a call returns, and `model.save_pretrained(...)` without `state_dict=`, which saves the
    model's own state. FSDP1's sharded states, and all of its optimizer states, are copies; FSDP2's are the live
    tensors. If the program may read one after a later step (it returns it, stores it in an attribute or passes it to a
    thread), the rewrite copies it. The state of a model compiled with `torch.compile` has names that start with
    `_orig_mod.` under FSDP1, but not under FSDP2.
    """

    id = "FSDP309"
    name = "model-state"
    moves_together = True
    markers = ("state_dict(",)
    what_to_test = RESUME
    visits = (cst.Attribute, cst.Call)
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def main(path):
    model = Net()
    model.load_state_dict(torch.load("start.pt"))
    model = FSDP(model)
    state = model.state_dict()
    model.load_state_dict(torch.load(path))
    return state
"""
    after = """
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

def main(path):
    model = Net()
    model.load_state_dict(torch.load("start.pt"))
    fully_shard(model)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    set_model_state_dict(
        model,
        torch.load(path),
        options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True),
    )
    return state
"""

    def visit(self, node: cst.Attribute | cst.Call, file: File) -> Iterable[Diagnosis]:
        """One verdict for each call whose receiver is a wrapped model, and for its methods that are passed on."""
        if isinstance(node, cst.Attribute):
            yield from _passed_on(node, file)
            return
        if not isinstance(node.func, cst.Attribute):
            return
        if node.func.attr.value == SAVES:
            yield from _saved(node, node.func.value, file)
        if node.func.attr.value not in ("state_dict", "load_state_dict"):
            return
        said = [*verdicts(node, file)]
        yield from said
        model = node.func.value
        if said:
            return
        flows = isinstance(model, cst.Call) and value_of(model, file).model is not Certainty.NO
        if flows or is_given_by_call(model, file):
            yield Diagnosis(node, Level.MANUAL, f"{file.code(model)}{GIVEN}", NAMED)
        elif _may_be_a_part(model, file):
            yield Diagnosis(node, Level.MANUAL, f"{file.code(model)}{PART}", OF_PART)


def _saved(call: cst.Call, model: cst.BaseExpression, file: File) -> Iterator[Diagnosis]:
    """The verdict about a sharded ``model`` that writes its own state, where FSDP1 does not gather it around."""
    held = sharded(model, file).certainty
    if not texts.NO_MODEL.search(last_name(model)) and _may_be_a_part(model, file):
        held = Certainty.MAYBE
    given = any(one.star or (one.keyword is not None and one.keyword.value == "state_dict") for one in call.args)
    # A method of the tree takes the state itself, where it has its finding.
    if held is Certainty.NO or given or is_summoned(call, file) or known_as("own", call.func, file):
        return
    message = OWN if held is Certainty.YES else f"if this model is sharded: {OWN}"
    yield Diagnosis(call, Level.MANUAL, message, GIVE)


def _may_be_a_part(model: cst.BaseExpression, file: File) -> bool:
    """Whether ``model`` is none by itself, and is taken out of what may be a sharded one."""
    if sharded(model, file).certainty is not Certainty.NO or NO_MODEL.search(file.code(model)):
        return False
    return sharded_part(model, file) is not Certainty.NO


def _passed_on(node: cst.Attribute, file: File) -> Iterator[Diagnosis]:
    parent = file.parent(node)
    if node.attr.value not in ("state_dict", "load_state_dict") or isinstance(parent, cst.AssignTarget | cst.Del):
        return
    if call_of(node, file) is not None or sharded(node.value, file).certainty is Certainty.NO:
        return
    method, does = ("get", "returns") if node.attr.value == "state_dict" else ("set", "takes")
    yield Diagnosis(
        node,
        Level.MANUAL,
        f"{file.code(node)} is passed on as a function, and FSDP2's own method {does} DTensors",
        f"pass a function that calls {method}_model_state_dict with StateDictOptions(full_state_dict=True)",
    )
