"""Rule for the static method ``summon_full_params``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import bind, call_of, calls_plainly
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.loop._summoned_block import PARAMETERS, Native, native
from fsdp_rules.loop.forward_methods import COMPUTES
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrappers import other_wrapper
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.sentence import sentence

METHOD = "summon_full_params"
CURE = (
    "read single parameters with param.full_tensor() on all ranks, and put model.unshard() and model.reshard() "
    "around the computation"
)


class SummonFullParams(Rule):
    """summon_full_params().

    FSDP2 has no such context manager. A block that reads parameters gathers each with `full_tensor()`; one that copies
    whole tensors into them copies DTensors of the same layout; one that generates is put between `unshard()` and
    `reshard()`, also if a name or a function provides the context, or if `nullcontext()` is the alternative. Anything
    else (a context that is passed on, only rank 0's parameters, gradients, a whole model that is passed on) calls
    `fsdp_compat.summon_full_params`, which has the same arguments and the same effect: full precision parameters under
    their own names, written back into the shards at the end unless `writeback=False`. FSDP1's static method would
    silently do nothing to an FSDP2 model, and the helper does nothing to a model that a library wraps with FSDP1.
    """

    id = "FSDP203"
    name = "summon-full-params"
    moves_together = True
    spelled = ("summon_full_params",)
    visits = (cst.Attribute,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def sample(model, tokens):
    model = FSDP(model)
    with FSDP.summon_full_params(model, writeback=False, recurse=False):
        return model.generate(tokens)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def sample(model, tokens):
    fully_shard(model)
    model.unshard()
    try:
        return model.generate(tokens)
    finally:
        model.reshard()
"""

    def visit(self, node: cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """The method in any form: called, passed on, or reached through an instance."""
        if node.attr.value != METHOD:
            return
        held = self._held(node, file)
        if held is None:
            return
        call = file.parent(node)
        found: Native | str = "'--helpers always' asks for it"
        if not file.settings.prefers_helpers:
            found = _native(node, call, held, file)
        if isinstance(found, Native) and isinstance(call, cst.Call):
            yield Diagnosis(
                node,
                Level.REVIEW if found.notes else Level.SAFE,
                sentence(found.done, *found.notes),
                edits=tuple(found.edits),
            )
            return
        if not file.settings.may_help:
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"needs fsdp_compat.summon_full_params, but '--helpers never' forbids it: {found}",
                CURE,
            )
            return
        helper = file.ref("fsdp_compat.summon_full_params")
        message = f"fsdp_compat gathers the parameters, because {found}"
        advice = CURE
        if held is Certainty.NO:
            message = (
                f"{message}, assuming {file.code(node.value)} was an FSDP1 model, since nothing else in torch has "
                f"{METHOD}"
            )
        elif held is Certainty.MAYBE:
            message = f"{message}, assuming {file.code(node.value)} is the sharded model"
        elif file.project.flags.isdisjoint(("fsdp1", "gated")):
            held = Certainty.MAYBE
            message = f"{message}, but this project does not wrap the model itself"
            advice = "switch the library that wraps it (accelerate, lightning, composer) to FSDP2"
        yield Diagnosis(
            node,
            Level.SAFE if held is Certainty.YES else Level.REVIEW,
            message,
            advice,
            edits=(Replace(node, lambda code: helper),),
        )

    def _held(self, node: cst.Attribute, file: File) -> Certainty | None:
        """How sure it is that this is FSDP1's method; NO where its name alone says so, None where it is another's."""
        if file.fsdp1(node) == f"{FSDP}.{METHOD}":
            return Certainty.YES
        call = call_of(node, file)
        if call is None or not call.args:
            return None
        owner = node.value
        if isinstance(owner, cst.Call) and calls_plainly(owner, ("type",), 1):
            owner = owner.args[0].value
        elif isinstance(owner, cst.Attribute) and owner.attr.value == "__class__":
            owner = owner.value
        held = sharded(owner, file)
        if held.certainty is Certainty.NO and (METHOD in file.project.methods or held.is_excluded):
            return None
        return held.certainty


def _native(node: cst.Attribute, call: cst.CSTNode | None, held: Certainty, file: File) -> Native | str:
    """The block without a helper, or why it needs one."""
    if held is Certainty.NO or file.project.flags.isdisjoint(("fsdp1", "gated")):
        return "another library may own this model"
    if not isinstance(call, cst.Call) or call.func is not node:
        return "the method is passed to other code"
    found = native(call, lambda name: COMPUTES.fullmatch(name) is not None, file)
    model = (bind(call, PARAMETERS) or {}).get("module")
    if isinstance(found, str) or model is None:
        return found
    known = sharded(model, file)
    if known.certainty is Certainty.NO and known.is_excluded:
        return f"{file.code(model)} is not sharded here"
    # FSDP1's static method was called on it. On another model what is written stops with an AttributeError.
    if other_wrapper(model, file) is not Certainty.NO:
        return f"{file.code(model)} may be in another wrapper, where unshard() does nothing"
    if known.certainty is not Certainty.YES:
        found.notes.append(f"assumes {file.code(model)} is the sharded model")
    return found
