"""Rule for ``functools.partial(FSDP, ...)``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import is_partial
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class PartialConstructor(Rule):
    """partial(FullyShardedDataParallel, ...).

    The other arguments, and the model, are only known where the partial object is called. `fsdp_compat.shard` takes
    FSDP1's arguments under FSDP1's names, so it replaces the class.
    """

    id = "FSDP115"
    name = "partial-constructor"
    moves_together = True
    visits = (cst.Call,)
    before = """
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(parts):
    wrapper = partial(FSDP, use_orig_params=True)
    return {name: wrapper(part) for name, part in parts.items()}
"""
    after = """
from functools import partial

import fsdp_compat

def build(parts):
    wrapper = partial(fsdp_compat.shard, use_orig_params=True)
    return {name: wrapper(part) for name, part in parts.items()}
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Put the helper in the place of the class."""
        if not isinstance(node, cst.Call) or not is_partial(node, file) or not node.args:
            return
        wrapper = node.args[0].value
        if file.fsdp1(wrapper) != FSDP:
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
            "fsdp_compat.shard applies FSDP1's arguments in place where the partial object is called",
            "check that its callers expect the same object back, not a wrapper",
            edits=(Replace(wrapper, lambda code: spelled),),
        )
