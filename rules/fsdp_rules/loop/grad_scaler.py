"""Rule for the class ``ShardedGradScaler``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import bind, call_of, is_none, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import call_text
from fsdp_rules.file.reads import is_read_whole
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.api import parameters
from fsdp_rules.model.backends import lacks_cpu_backend
from fsdp_rules.model.guards import is_under_another_wrapper, is_under_ddp
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.sentence import sentence

BOTH = "some models of this project keep FSDP1, which needs ShardedGradScaler, and others use FSDP2"
#: torch's own scalers.
PLAIN = frozenset({"torch.GradScaler", "torch.amp.GradScaler", "torch.cuda.amp.GradScaler"})
APART = "assumes all ranks skipped the same steps: FSDP1 checked each rank's shards, now all ranks are checked"
COMPARE = "compare the loss scales of all ranks in the old run: if they differ, its ranks trained differently"
PER_MODEL = "use ShardedGradScaler for the models that keep FSDP1, and torch.amp.GradScaler for the others"


#: The parameters of ShardedGradScaler. Those of GradScaler have the two factors the other way round.
class GradScaler(Rule):
    """ShardedGradScaler.

    FSDP1 needed its own scaler to make all ranks skip a step when one of them found an infinite gradient. FSDP2's
    gradients are DTensors, and `torch.amp.GradScaler` does this by itself over the mesh of the parameters:
    `process_group` is removed. Positional factors become keywords, because the two classes order them differently.
    `fsdp_compat.ShardedGradScaler` is used in two cases: gradients are offloaded and another file starts a process
    group with only NCCL (one in the same file gets gloo for the CPU), or ranks outside the model's mesh (model
    parallelism) must skip a step too. torch's own scaler in a program with FSDP1 is listed: each rank checked only its
    own shards, so ranks skipped steps and lowered their scales independently. With FSDP2 all ranks do so together.
    """

    id = "FSDP204"
    name = "sharded-grad-scaler"
    shim = True
    spelled = ("ShardedGradScaler",)
    markers = ("GradScaler(",)
    what_to_test = "Train in fp16 past the first skipped step and compare the loss scale with that of the old code."
    visits = (cst.Call, cst.Name, cst.Attribute)
    before = """
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

scaler = ShardedGradScaler(growth_interval=1000)
"""
    after = """
import torch

scaler = torch.amp.GradScaler("cuda", growth_interval=1000)
"""

    def visit(self, node: cst.Call | cst.Name | cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """The constructor, or the class as a value, an annotation, a base."""
        if type(node) is cst.Call and file.resolved(node.func) in PLAIN:
            if _sees_shards(node, file):
                yield Diagnosis(node, Level.REVIEW, APART, COMPARE)
        elif file.settings.to == "shim":
            return
        elif type(node) is cst.Call:
            if file.fsdp1(node.func) == "ShardedGradScaler" and _serves_both(file):
                yield Diagnosis(node, Level.MANUAL, BOTH, PER_MODEL, claims=(node.func,))
            elif file.fsdp1(node.func) == "ShardedGradScaler":
                yield from self._call(node, file)
        elif (
            file.fsdp1(node) == "ShardedGradScaler"
            and isinstance(node, cst.BaseExpression)
            and _is_reference(node, file)
        ):
            if _serves_both(file):
                yield Diagnosis(node, Level.MANUAL, BOTH, PER_MODEL, claims=(node,))
            else:
                yield from self._reference(node, file)

    def _call(self, call: cst.Call, file: File) -> Iterator[Diagnosis]:
        if (reason := _contradicted(file)) is not None:
            yield _kept_by_helper(call, call.func, reason, file)
            return
        scaler = file.ref("torch.amp.GradScaler")
        assumptions = _assumptions(file)
        names = parameters("ShardedGradScaler")
        if call.args and _is_number(call.args[0]):
            names = names[1:]
        arguments = bind(call, names)
        if arguments is None:
            if not all(argument.star == "**" or argument.keyword for argument in call.args):
                yield _manual(call, "positional arguments may be the factors, which GradScaler orders differently")
                return
            assumptions.append("assumes the dictionary has no process_group")
            edits = (Replace(call.func, lambda code: scaler),)
        else:
            group = arguments.pop("process_group", None)
            if group is not None and not is_none(group):
                assumptions.append("assumes the process group is that of the model's mesh")
            edits = (Replace(call, lambda code: _text(scaler, arguments, code)),)
        yield Diagnosis(
            call,
            Level.REVIEW if assumptions else Level.SAFE,
            sentence("torch.amp.GradScaler checks the gradients of all ranks by itself", *assumptions),
            edits=edits,
            claims=(call.func,),
        )

    def _reference(self, node: cst.BaseExpression, file: File) -> Iterator[Diagnosis]:
        parent = file.parent(node)
        if isinstance(parent, cst.Arg) and isinstance(file.parent(parent), cst.ClassDef):
            yield _manual(node, "a class that extends ShardedGradScaler may override what GradScaler does differently")
            return
        if (reason := _contradicted(file)) is not None:
            yield _kept_by_helper(node, node, reason, file)
            return
        scaler = file.ref("torch.amp.GradScaler")
        yield Diagnosis(
            node,
            Level.REVIEW,
            sentence("torch.amp.GradScaler replaces ShardedGradScaler, its subclass", *_assumptions(file)),
            edits=(Replace(node, lambda code: scaler),),
        )


def _sees_shards(call: cst.Call, file: File) -> bool:
    """Whether ``call`` makes torch's own scaler where a model of FSDP1 may be trained, and not one that is off."""
    if "fsdp1" not in file.project.flags or not file.project.touches(file.path) or "ShardedGradScaler" in file.text:
        return False
    named = {one.keyword.value: one.value for one in call.args if one.keyword is not None}
    off = literal_bool(named.get("enabled")) is False
    return not off and not is_under_ddp(call, file) and not is_under_another_wrapper(call, file)


def _serves_both(file: File) -> bool:
    """Whether some models of the project keep FSDP1, and others use FSDP2."""
    kept = file.project.kept
    return bool(kept.wraps) and not (kept.alone or kept.left_by(file.path))


def _assumptions(file: File) -> list[str]:
    found = []
    if "ignored" in file.project.flags:
        found.append("assumes ignored parameters have finite gradients, or the same on all ranks")
    if "low_precision" in file.project.flags:
        found.append("assumes parameters are not fp16 (GradScaler refuses fp16 gradients)")
    if "offload" in file.project.flags:
        found.append("assumes the process group has a CPU backend if gradients are offloaded")
    if "own_group" in file.project.flags:
        found.append("assumes the model's process_group contains every rank, as ShardedGradScaler's default does")
    return found


def _contradicted(file: File) -> str | None:
    """Why torch's scaler does not do in this project what FSDP1's does, as far as the project says."""
    if "offload" in file.project.flags and lacks_cpu_backend(file):
        return "torch's scaler reduces offloaded gradients on the CPU, which this NCCL group cannot do"
    if file.project.values.has_subgroup:
        return "torch's scaler checks only the model's group, which may be a subgroup"
    return None


def _kept_by_helper(node: cst.CSTNode, name: cst.BaseExpression, reason: str, file: File) -> Diagnosis:
    """The helper's scaler, which takes FSDP1's arguments, in place of ``name``."""
    if not file.settings.may_help:
        advice = 'use fsdp_compat.ShardedGradScaler, or start the process group with "cpu:gloo,cuda:nccl"'
        return Diagnosis(node, Level.MANUAL, f"torch.amp.GradScaler differs here: {reason}", advice, claims=(name,))
    scaler = file.ref("fsdp_compat.ShardedGradScaler")
    message = f"fsdp_compat.ShardedGradScaler is used, since {reason}"
    return Diagnosis(node, Level.SAFE, message, edits=(Replace(name, lambda code: scaler),), claims=(name,))


def _manual(node: cst.CSTNode, message: str) -> Diagnosis:
    return Diagnosis(node, Level.MANUAL, message, "write the class against torch.amp.GradScaler", claims=(node,))


def _is_number(argument: cst.Arg) -> bool:
    """Whether an argument is a scale: before torch 2.3 it came first."""
    return argument.keyword is None and isinstance(argument.value, cst.Integer | cst.Float | cst.BinaryOperation)


def _is_reference(node: cst.BaseExpression, file: File) -> bool:
    return call_of(node, file) is None and is_read_whole(node, file.layout)


def _text(scaler: str, arguments: dict[str, cst.BaseExpression], code: Code) -> str:
    device = code(arguments["device"]) if "device" in arguments else '"cuda"'
    rest = [f"{name}={code(value)}" for name, value in arguments.items() if name != "device"]
    return call_text(scaler, [device, *rest])
