"""Rule for activation checkpointing: an argument that torch removed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import is_partial, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.names import CHECKPOINT_WRAPPER
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

WRAPPER = f"{CHECKPOINT_WRAPPER}.checkpoint_wrapper"
OFFLOAD = f"{CHECKPOINT_WRAPPER}.offload_wrapper"


class ActivationCheckpointing(Rule):
    """apply_activation_checkpointing() and checkpoint_wrapper().

    Both are unchanged, before and after wrapping: the numbers are the same, and so are the gathers of a step, since the
    backward of a unit gathers it before its recomputation. torch removed the argument `offload_to_cpu` from
    `checkpoint_wrapper` and passes it to the module's forward, which fails.
    """

    id = "FSDP118"
    name = "activation-checkpointing"
    visits = (cst.Call,)
    before = """
from functools import partial

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model, check):
    model = FSDP(model)
    wrapper = partial(checkpoint_wrapper, offload_to_cpu=False)
    apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrapper, check_fn=check)
    return model
"""
    after = """
from functools import partial

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import fully_shard

def build(model, check):
    fully_shard(model)
    wrapper = partial(checkpoint_wrapper)
    apply_activation_checkpointing(model, checkpoint_wrapper_fn=wrapper, check_fn=check)
    return model
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Look at calls of torch's checkpoint wrappers in a project that uses FSDP1."""
        if "fsdp1" not in file.project.flags or not node.args:
            return
        is_bound = is_partial(node, file) and file.resolved(node.args[0].value) == WRAPPER
        if is_bound or file.resolved(node.func) == WRAPPER:
            yield from self._offload(node, is_bound, file)

    def _offload(self, call: cst.Call, is_bound: bool, file: File) -> Iterator[Diagnosis]:
        flag = next((entry for entry in call.args if entry.keyword and entry.keyword.value == "offload_to_cpu"), None)
        if flag is None:
            return
        value = literal_bool(file.value(flag.value))
        if value is None or (value and is_bound):
            yield Diagnosis(
                call,
                Level.MANUAL,
                "checkpoint_wrapper passes offload_to_cpu to the module's forward, which fails",
                "remove offload_to_cpu=False; for offload_to_cpu=True wrap checkpoint_wrapper(module) in "
                "offload_wrapper",
            )
            return
        offload = file.ref(OFFLOAD) if value else ""

        def build(code: Code) -> str:
            text = f"{code(call.func)}({_without(flag, call, code)})"
            return f"{offload}({text})" if value else text

        yield Diagnosis(
            call,
            Level.SAFE,
            "checkpoint_wrapper passes offload_to_cpu to the module's forward, which fails"
            + (
                ", and offload_wrapper keeps the saved tensors on the CPU"
                if value
                else ", and False is its default behaviour"
            ),
            edits=(Replace(call, build),),
        )


def _without(flag: cst.Arg, call: cst.Call, code: Code) -> str:
    """The arguments of ``call`` but for ``flag``, on the lines where they stand."""
    kept = [entry for entry in call.args if entry is not flag]
    if not kept:
        return ""
    # What follows the last argument is the end of the list, whichever argument that is.
    ends = [*kept[:-1], call.args[-1]]
    return _raw(call.whitespace_before_args) + "".join(
        _bare(entry, code) + _raw(end.comma) + _raw(end.whitespace_after_arg)
        for entry, end in zip(kept, ends, strict=True)
    )


def _bare(argument: cst.Arg, code: Code) -> str:
    name = argument.star if argument.keyword is None else argument.keyword.value + _raw(argument.equal)
    return name + code(argument.value)


def _raw(node: cst.CSTNode | cst.MaybeSentinel) -> str:
    return cst.Module([]).code_for_node(node) if isinstance(node, cst.CSTNode) else ""
