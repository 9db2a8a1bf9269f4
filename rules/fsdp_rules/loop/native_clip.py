"""Rule for ``torch.nn.utils.clip_grad_norm_`` on the parameters of an FSDP1 model."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

import libcst as cst

from fsdp_rules.file.ancestors import branches
from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.model.parameters import sharded_parameters
from fsdp_rules.model.sharded import Why, sharded
from fsdp_rules.model.wrap_given import IGNORED, wrap_given
from fsdp_rules.model.wrapping import model_of_parameters
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import CLIPPING

#: A limit that people write to get the norm without clipping; gradients of a run that trains stay below it.
NEVER = 1e5
CLIP = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad.clip_grad_norm_")


class NativeClip(Rule):
    """torch.nn.utils.clip_grad_norm_ on a sharded model.

    FSDP1's gradients are plain local tensors, so every rank clipped by the norm of its own shards, with a different
    factor. FSDP2's are DTensors: all ranks clip by the global norm. That is the intended behaviour, but the numbers
    differ whenever clipping is active. A limit of 1e5 or more is assumed never to clip, and an infinite limit never
    does. The returned norm is a DTensor, and `.full_tensor()` turns it into a number on every torch version. Gradients
    of parameters that FSDP ignores are plain tensors, and torch's function raises if they are mixed with DTensors. It
    also raises if the units of a model are sharded over several meshes.
    """

    id = "FSDP215"
    name = "native-clip"
    what_to_test = CLIPPING
    visits = (cst.Call,)
    shim = True
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(model, loss):
    model = FSDP(model)
    loss(model).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return norm
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def train(model, loss):
    fully_shard(model)
    loss(model).backward()
    # TODO(fsdp-migrate FSDP215): FSDP1 clipped by each rank's own norm, FSDP2 clips by the global norm
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
    return norm
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """One verdict about the numbers, and one about the norm where it is used."""
        if not node.args or file.resolved(node.func) not in CLIP:
            return
        model = model_of_parameters(node.args[0].value, file)
        held = sharded_parameters(node.args[0].value, file)
        parent = file.parent(node)
        if held is Certainty.NO or (isinstance(parent, cst.Attribute) and parent.attr.value == "full_tensor"):
            return
        raises = "" if model is None else _raises(model, file)
        if _is_for_unwrapped(node, model, held, file) or (
            _limit(node) == inf and isinstance(parent, cst.Expr) and not raises
        ):
            return
        yield self._numbers(node, held, file) if not raises else _of_several(node, raises, held)
        if model is not None and not isinstance(parent, cst.Expr) and sharded(model, file).why is Why.ABOVE:
            yield Diagnosis(
                node,
                Level.SAFE,
                "the norm is now a DTensor, and full_tensor() returns its value on every rank",
                edits=(Replace(node, lambda code: f"{code(node)}.full_tensor()"),),
            )

    def _numbers(self, call: cst.Call, held: Certainty, file: File) -> Diagnosis:
        advice = (
            "expect different losses when clipping is active: they now match FSDP1's model.clip_grad_norm_. The "
            "returned norm is a DTensor, and .full_tensor() returns its value."
        )
        message = "FSDP1 clipped by each rank's own norm, FSDP2 clips by the global norm"
        if "fsdp1" not in file.project.flags:
            return Diagnosis(call.func, Level.REVIEW, f"if these parameters are sharded, {message}", advice)
        if (limit := _limit(call)) >= NEVER and isinstance(file.parent(call), cst.Expr):
            return Diagnosis(call.func, Level.REVIEW, f"assumes no gradient norm reaches {limit:g}: {message}", advice)
        if held is Certainty.YES:
            return Diagnosis(call.func, Level.MANUAL, message, advice)
        if "ddp" in file.project.flags:
            return Diagnosis(
                call, Level.REVIEW, f"assumes these parameters are those of a DDP model: {message}", advice
            )
        return Diagnosis(call.func, Level.MANUAL, f"if these parameters are sharded, {message}", advice)


def _raises(model: cst.BaseExpression, file: File) -> str:
    """Why torch's function may raise on the parameters of ``model``, "" where it does not."""
    given = wrap_given(model, file)
    if given.gives("ignored", *IGNORED) is not Certainty.NO:
        return "ignored (plain) and sharded parameters are mixed, which raises if both are trained"
    return "units may be sharded over several meshes, which raises" if given.has_several_meshes() else ""


def _of_several(call: cst.Call, message: str, held: Certainty) -> Diagnosis:
    """The verdict about ``call`` on parameters of several kinds."""
    return Diagnosis(
        call.func,
        Level.MANUAL,
        message if held is Certainty.YES else f"if these parameters are sharded: {message}",
        "call fsdp_compat.clip_grad_norm_(model, max_norm), which does what FSDP1's model.clip_grad_norm_ did. "
        "FSDP1 clipped by each rank's own norm here: expect different losses when clipping is active",
    )


def _limit(call: cst.Call) -> float:
    """The norm above which ``call`` clips, 0 where it is no number of the text."""
    given = [one.value for one in call.args if key_of(one) == "max_norm"] or [one.value for one in call.args[1:2]]
    value = given[0] if given else None
    if isinstance(value, cst.Call) and last_name(value.func) == "float" and len(value.args) == 1:
        value = value.args[0].value
    if isinstance(value, cst.Attribute) and value.attr.value == "inf":
        return inf
    if not isinstance(value, cst.Integer | cst.Float | cst.SimpleString):
        return 0.0
    try:
        return float(value.evaluated_value)
    except ValueError:
        return 0.0


def _is_for_unwrapped(call: cst.Call, model: cst.BaseExpression | None, held: Certainty, file: File) -> bool:
    """Whether ``call`` stands in the arm for unwrapped models: the other one calls the wrapped model's method.

    Where ``model`` surely is wrapped, a test of anything but the model itself, as of its strategy, says nothing of it.
    """
    text = None if model is None or held is not Certainty.YES else file.code(model)
    for ancestor, child in branches(call, file):
        if isinstance(ancestor, cst.If | cst.IfExp):
            other = ancestor.orelse if child is ancestor.body else ancestor.body
            asks = text is None or any(
                file.code(one) == text for kind in (cst.Name, cst.Attribute) for one in file.inside(ancestor.test, kind)
            )
            if other is not None and asks and _calls_method(other, file):
                return True
        if isinstance(ancestor, cst.FunctionDef):
            return False
    return False


def _calls_method(node: cst.CSTNode, file: File) -> bool:
    return any(
        isinstance(call.func, cst.Attribute)
        and call.func.attr.value == "clip_grad_norm_"
        and file.resolved(call.func) is None
        for call in file.inside(node, cst.Call)
    )
