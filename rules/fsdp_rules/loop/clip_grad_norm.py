"""Rule for the method ``clip_grad_norm_``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import call_of
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import call_with
from fsdp_rules.file.tree import Code
from fsdp_rules.loop._clipping import OFFLOADED, Clip, clip_of, clipping_of, may_be_own_method, takes_a_norm
from fsdp_rules.model.asked_for import asked_for
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.sentence import sentence
from fsdp_rules.verdict.what_to_test import CLIPPING

#: FSDP1 adds up the squares of flat shards, FSDP2 those of each parameter's shard.
NORM = "the global norm (FSDP1's to 1e-6)"


#: The norm of offloaded gradients is reduced where they are.
BACKEND = 'start the process group with backend="cpu:gloo,cuda:nccl" if parameters are offloaded'


class ClipGradNorm(Rule):
    """clip_grad_norm_() on a sharded model.

    FSDP1 needs its own method, because the ranks have plain local shards. FSDP2's gradients are DTensors, so
    `torch.nn.utils.clip_grad_norm_` computes the global norm. It returns a DTensor, and `.full_tensor()` turns it into
    the value that FSDP1 returned. If plain parameters of this model are mixed with sharded ones, or its units are
    sharded over several meshes, torch's function raises: `fsdp_compat.clip_grad_norm_` does what FSDP1's method did.
    If parameters are offloaded to the CPU, the norm is reduced there, so the process group needs a CPU backend
    (`"cpu:gloo,cuda:nccl"`). If the same file starts the process group with "nccl", FSDP232 adds gloo.

    The two agree to a relative difference of about 1e-6, because they sum the squares in a different order.
    """

    id = "FSDP201"
    name = "clip-grad-norm"
    moves_together = True
    markers = ("clip_grad_norm_",)
    open_world = True
    what_to_test = CLIPPING
    visits = (cst.Call, cst.Attribute)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(model, batches, optimizer):
    model = FSDP(model)
    for batch in batches:
        model(batch).sum().backward()
        norm = model.clip_grad_norm_(1.0).item()
        optimizer.step()
        print(norm)
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def train(model, batches, optimizer):
    fully_shard(model)
    for batch in batches:
        model(batch).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor().item()
        optimizer.step()
        print(norm)
"""

    def visit(self, node: cst.Call | cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """The method called, taken as a value, or asked for by name."""
        if isinstance(node, cst.Attribute):
            if node.attr.value == "clip_grad_norm_":
                yield from self._value(node, file)
        elif isinstance(node.func, cst.Attribute):
            if (clip := clip_of(node, file)) is not None:
                yield from self._call(node, clip, file)
        elif (found := asked_for(node, "clip_grad_norm_", file)) is not None:
            yield found

    def _call(self, call: cst.Call, clip: Clip, file: File) -> Iterator[Diagnosis]:
        receiver = clip.model
        found = sharded(receiver, file)
        held = found.certainty
        if (found.is_excluded and not clip.by_class) or not takes_a_norm(clip.call, file):
            return
        name = file.code(receiver)
        # The class is named where it is called, and its import is no longer needed.
        claims = (call.func,) if clip.by_class else ()
        if held is not Certainty.YES and known_as("own", call.func, file):
            return
        if not clip.by_class and may_be_own_method(found, file):
            yield Diagnosis(
                call,
                Level.MANUAL,
                f"{name} is either the sharded model or an object of this project with its own clip_grad_norm_",
                "if it is the model, call torch.nn.utils.clip_grad_norm_(model.parameters(), ...).full_tensor()",
            )
            return
        assumptions = [] if held is Certainty.YES else [f"assumes {name} is the sharded model"]
        clipping = clipping_of(clip.call, receiver, file)
        need = clipping.need
        assumptions += clipping.assumptions
        if need is not None and not file.settings.may_help:
            yield Diagnosis(
                call,
                Level.MANUAL,
                f"needs fsdp_compat.clip_grad_norm_, but '--helpers never' forbids it: {need.reason}",
                need.cure,
                claims=claims,
            )
            return
        if need is not None:
            helper = file.ref("fsdp_compat.clip_grad_norm_")
            if "ignored" in file.project.flags:
                assumptions.append(
                    "assumes ignored parameters are frozen or nothing is clipped (FSDP1 clips them by rank)"
                )
            yield Diagnosis(
                call,
                Level.REVIEW if assumptions else Level.SAFE,
                sentence(f"fsdp_compat clips by {NORM}, since {need.reason}", *assumptions),
                need.cure,
                edits=(
                    Replace(call, lambda code: call_with(helper, code(receiver), call, code, file, clip.call.args)),
                ),
                claims=claims,
            )
            return
        if "low_precision" in file.project.flags:
            assumptions.append("assumes fp32 parameters (FSDP1 summed the squares of lower precisions in fp32)")
        native = file.ref("torch.nn.utils.clip_grad_norm_")
        used = not isinstance(file.parent(call), cst.Expr)

        def build(code: Code) -> str:
            text = call_with(native, f"{code(receiver)}.parameters()", call, code, file, clip.call.args)
            return f"{text}.full_tensor()" if used else text

        yield Diagnosis(
            call,
            Level.REVIEW if assumptions else Level.SAFE,
            sentence(f"torch's clip_grad_norm_ clips by {NORM}, since all parameters share a mesh", *assumptions),
            BACKEND if OFFLOADED in assumptions else "",
            edits=(Replace(call, build),),
            claims=claims,
        )

    def _value(self, node: cst.Attribute, file: File) -> Iterator[Diagnosis]:
        if call_of(node, file) is not None or sharded(node.value, file).certainty is Certainty.NO:
            return
        if isinstance(file.parent(node), cst.AssignTarget):
            message = "this gives the model its own clip_grad_norm_, which runs instead of the rewritten call"
            advice = "check that it handles DTensors, or remove it and clip with torch.nn.utils.clip_grad_norm_"
        else:
            message = "an FSDP2 model has no clip_grad_norm_ method that could be passed"
            advice = "pass functools.partial(fsdp_compat.clip_grad_norm_, model) instead"
        yield Diagnosis(node, Level.MANUAL, message, advice)
