"""Rule for inputs that several units share, and weights that one unit reads again."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

SHARED = "FSDP1 adds up the gradients of an input, or of a weight, that is read more than once in another order"
ADDED_UP = "fsdp_compat.shard adds up the gradients of what is read more than once in FSDP1's order"


class SharedInputs(Rule):
    """Inputs that several units share.

    FSDP2 passes each input of a unit that needs a gradient through an autograd node of that unit
    (`RegisterPostBackwardFunction`). A unit that reads such an input more than once adds up its part of the gradient
    first, and the parts of the units are added then. FSDP1 has no such node: all parts are added one by one. Where
    other code reads the same tensor too, the sum has another order, and the gradient differs in its last digit.
    Cross-attention is the usual case: each decoder layer reads the encoder's output for keys and for values. A skip
    connection around a unit whose own residual reads the same tensor is another.

    `fsdp_compat.shard` adds up in FSDP1's order, and no form of `fully_shard` alone does. It is written where the
    program shows such a forward: a unit of a class of the tree that reads an input more than once, which other code, or
    the unit's next call, reads after it. It is written, too, where a unit runs several times before one backward and
    reads a weight more than once each time (`nn.GRU` on the CPU, tied weights): FSDP1 adds up each run first.
    Where a model is wrapped natively in a tree with the words of cross-attention, whose classes may come from a
    library, this is reported. `fsdp-migrate verify` names it and measures
    how far it carries.
    """

    id = "FSDP122"
    name = "shared-inputs"
    visits = (cst.Call,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(cross_attention):
    return FSDP(cross_attention)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(cross_attention):
    return fully_shard(cross_attention)
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Calls that wrap a model, in a tree that names cross-attention."""
        if not isinstance(node, cst.Call) or file.fsdp1(node.func) != FSDP:
            return
        if sharing_inputs(node, file):
            yield Diagnosis(node, Level.SAFE, ADDED_UP)
        if sharing_inputs(node, file) or "cross_inputs" not in file.project.flags:
            return
        yield Diagnosis(
            node,
            Level.REVIEW,
            "assumes no unit reads twice what other units read too (cross-attention), or that last digits may differ",
            "measure it with fsdp-migrate verify: FSDP2 adds up the gradient of such an input in another order, and "
            "fsdp_compat.shard in that of FSDP1",
        )


def sharing_inputs(call: cst.Call, file: File) -> list[str]:
    """Why ``fully_shard`` alone would add up gradients in another order than what ``call`` wraps does under FSDP1."""
    is_shared = (file.path, file.span(call).line) in file.project.values.sharing
    return [SHARED] if is_shared else []
