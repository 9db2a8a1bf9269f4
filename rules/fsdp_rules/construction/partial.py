"""Rule for ``functools.partial(FSDP, ...)``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.bound_calls import calls_of_partial
from fsdp_rules.construction.call import applied_all
from fsdp_rules.file.expressions import is_partial
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class PartialConstructor(Rule):
    """partial(FullyShardedDataParallel, ...).

    If every call of the partial object is in the file and passes only a module, each becomes `fully_shard` with the
    arguments of both, and the partial object is removed. Otherwise the model and the other arguments are only known at
    the call: `fsdp_compat.shard`, which accepts FSDP1's arguments under FSDP1's names, replaces the class.
    """

    id = "FSDP115"
    is_wrap = True
    name = "partial-constructor"
    moves_together = True
    visits = (cst.Call,)
    before = """
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardingStrategy

def build(model):
    wrapper = partial(FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)
    model.encoder = wrapper(model.encoder)
    model.decoder = wrapper(model.decoder, use_orig_params=True)
    return wrapper(model)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    fully_shard(model.encoder, reshard_after_forward=False)
    fully_shard(model.decoder, reshard_after_forward=False)
    return fully_shard(model, reshard_after_forward=False)
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Put the helper in the place of the class."""
        if not is_partial(node, file) or not node.args:
            return
        wrapper = node.args[0].value
        if file.fsdp1(wrapper) != FSDP:
            return
        said = applied_all(calls_of_partial(node, file), file)
        if not isinstance(said, str):
            yield Diagnosis(wrapper, Level.SAFE, "each call of this partial object shards its module in place")
            yield from said
            return
        if not file.settings.may_help:
            yield Diagnosis(
                wrapper,
                Level.MANUAL,
                "the other arguments of this constructor are only known where the partial object is called",
                "allow helpers, or write a function that calls fully_shard on the units of its argument",
            )
            return
        spelled = file.ref("fsdp_compat.shard")
        yield Diagnosis(
            wrapper,
            Level.REVIEW,
            f"fsdp_compat.shard applies FSDP1's arguments where this partial object is called: {said}",
            "check that its callers accept the same object instead of a wrapper",
            edits=(Replace(wrapper, lambda code: spelled),),
        )
