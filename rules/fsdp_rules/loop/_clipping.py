"""Whether torch's ``clip_grad_norm_`` does for a sharded model what FSDP1's method did, and what that rests on."""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.expressions import bind
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.backends import lacks_cpu_backend, reduces_no_cpu_tensors
from fsdp_rules.model.sharded import Sharded
from fsdp_rules.model.wrap_given import IGNORED, wrap_given
from fsdp_rules.model.wrapping import model_of_parameters
from fsdp_rules.project.project import Certainty

#: Names of parameters, which hyperparameters (hparams) are not.
_PARAMETERS = re.compile(r"(?<![a-z])param", re.IGNORECASE)


@dataclass(frozen=True)
class Need:
    """Why a helper is needed, and what to change by hand to do without."""

    reason: str
    cure: str


@dataclass(frozen=True)
class Clipping:
    """What a call rests on where torch's function is written, or the ``need`` of the helper.

    ``adds_cpu_backend``: the process group that the file starts for NCCL alone gets gloo for the CPU.
    """

    need: Need | None = None
    assumptions: tuple[str, ...] = ()
    adds_cpu_backend: bool = False


INFINITE = Need(
    "torch's infinity norm fails if a rank has an empty shard",
    "call torch.nn.utils.clip_grad_norm_ if each parameter has at least as many rows as there are ranks",
)
MIXED = Need(
    "plain (ignored) and sharded parameters may be mixed",
    "if the ignored parameters are frozen, clip only the sharded ones with torch.nn.utils.clip_grad_norm_",
)
NO_CPU_BACKEND = Need(
    "parameters may be offloaded, and NCCL cannot reduce a norm on the CPU",
    'start the process group with backend="cpu:gloo,cuda:nccl"',
)
SEVERAL = Need(
    "units may be sharded over several meshes, where torch's clip_grad_norm_ raises",
    "if all units share one mesh, call torch.nn.utils.clip_grad_norm_",
)
ASKED = Need("'--helpers always' asks for it", "use --helpers needed")
OFFLOADED = "assumes the process group has a CPU backend if parameters are offloaded"


@dataclass(frozen=True)
class Clip:
    """A call of FSDP1's ``clip_grad_norm_``: its model, and the call as one of the model's method.

    ``by_class``: the call is ``FSDP.clip_grad_norm_(model, ...)``.
    """

    model: cst.BaseExpression
    call: cst.Call
    by_class: bool = False


def clip_of(call: cst.Call, file: File) -> Clip | None:
    """What ``call`` clips, where it may be FSDP1's method, called on a model or on the class."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "clip_grad_norm_":
        return None
    if file.fsdp1(call.func) != f"{FSDP}.clip_grad_norm_":
        return Clip(call.func.value, call)
    for index, argument in enumerate(call.args):
        by_name = argument.keyword is not None and argument.keyword.value == "self"
        first = index == 0 and argument.keyword is None and not argument.star
        if (by_name or first) and model_of_parameters(argument.value, file) is None:
            others = [other for other in call.args if other is not argument]
            return Clip(argument.value, call.with_changes(args=others), by_class=True)
    return None


def clipping_of(call: cst.Call, receiver: cst.BaseExpression, file: File) -> Clipping:
    """What becomes of ``call``, FSDP1's ``clip_grad_norm_`` of ``receiver``."""
    norm_type = (bind(call, ("max_norm", "norm_type")) or {}).get("norm_type")
    if norm_type is not None and not isinstance(norm_type, cst.Integer | cst.Float):
        return Clipping(INFINITE)
    given = wrap_given(receiver, file)
    if given.gives("ignored", *IGNORED) is not Certainty.NO:
        return Clipping(MIXED)
    if given.has_several_meshes():
        return Clipping(SEVERAL)
    is_offloaded = given.offloads() is not Certainty.NO
    if is_offloaded and lacks_cpu_backend(file):
        return Clipping(NO_CPU_BACKEND)
    if file.settings.prefers_helpers:
        return Clipping(ASKED)
    if is_offloaded and reduces_no_cpu_tensors(file):
        told = "assumes init_process_group() of this file starts the process group, with its new CPU backend"
        return Clipping(None, (told,), True)
    return Clipping(None, (OFFLOADED,) if is_offloaded else ())


def takes_a_norm(call: cst.Call, file: File) -> bool:
    """Whether the arguments are those of FSDP1's method, and not the parameters that a function of that name takes."""
    arguments = bind(call, ("max_norm", "norm_type"))
    if arguments is None:
        return all(argument.star for argument in call.args)
    if "max_norm" not in arguments or not set(arguments) <= {"max_norm", "norm_type"}:
        return False
    return _PARAMETERS.search(file.code(arguments["max_norm"])) is None


def may_be_own_method(found: Sharded, file: File) -> bool:
    """Whether the method may be one that a class of the project defines."""
    return found.certainty is not Certainty.YES and "clip_grad_norm_" in file.project.methods
