"""Rule for torchao's gather of weights in float8."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import literal_bool, literal_text
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

SWITCH = "enable_fsdp_float8_all_gather"


class Float8Gather(Rule):
    """torchao's float8 all-gather (enable_fsdp_float8_all_gather).

    The setting works with FSDP2 alone: each rank casts its shard of a weight and gathers it in float8. FSDP2 pads
    uneven shards, and torchao's tensor does not, so the gather raises on some ranks where the rows of a weight do not
    divide evenly among them. `fsdp-migrate preflight` names such weights of a real model.
    """

    id = "FSDP127"
    name = "float8-gather"
    markers = (SWITCH,)
    open_world = True
    what_to_test = "Run the preflight on the number of ranks that you train with."
    visits = (cst.Arg, cst.SimpleString)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

def build(model):
    convert_to_float8_training(model, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))
    return FSDP(model, use_orig_params=True)
"""
    after = """
from torch.distributed.fsdp import fully_shard
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

def build(model):
    convert_to_float8_training(model, config=Float8LinearConfig(enable_fsdp_float8_all_gather=True))
    return fully_shard(model)
"""

    def visit(self, node: cst.Arg | cst.SimpleString, file: File) -> Iterable[Diagnosis]:
        """What turns the setting on, or gives it a value that only the program knows: an argument, or an entry."""
        if not file.project.may_trap(file.settings.traps):
            return
        entry = node if isinstance(node, cst.Arg) else file.parent(node)
        is_named = literal_text(node) == SWITCH if isinstance(node, cst.SimpleString) else _is_given(node)
        value = entry.value if isinstance(entry, cst.Arg | cst.DictElement) else None
        if is_named and (value is None or literal_bool(value) is not False):
            yield Diagnosis(
                node,
                Level.REVIEW,
                "assumes the rows of each float8 weight divide evenly among the ranks, or its gather raises",
                "check it with fsdp-migrate preflight. Leave other layers out with module_filter_fn",
            )


def _is_given(argument: cst.Arg) -> bool:
    return argument.keyword is not None and argument.keyword.value == SWITCH
