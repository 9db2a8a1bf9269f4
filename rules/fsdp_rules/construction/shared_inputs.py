"""Rule for inputs that several units share, and weights that one unit reads again."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

SHARED = "FSDP1 sums the gradients of an input or weight that is used several times in a different order"
ADDED_UP = "fsdp_compat.shard sums the gradients of tensors that are used several times in FSDP1's order"


class SharedInputs(Rule):
    """Inputs that several units share.

    FSDP2 passes each input of a unit that needs a gradient through an autograd node of that unit
    (`RegisterPostBackwardFunction`). A unit that reads such an input more than once first sums its own part of the
    gradient, and then the parts of all units are summed. FSDP1 has no such node and adds all parts one by one. If other
    code reads the same tensor too, the order of the sum differs, and so does the last digit of the gradient.
    Cross-attention is the usual case: each decoder layer reads the encoder's output for keys and for values. Another
    case is a skip connection around a unit whose own residual reads the same tensor.

    `fsdp_compat.shard` sums in FSDP1's order, and `fully_shard` alone cannot. The rewrite uses it if the program
    contains such a forward: a unit reads an input more than once, and other code, or the unit's next call, reads it
    afterwards. The rewrite also uses it if a unit runs several times before one backward and reads a weight more than
    once each time (`nn.GRU` on the CPU, tied weights): FSDP1 sums each run first. If a model is wrapped natively in a
    tree that mentions cross-attention, whose classes may come from a library, this is reported. `fsdp-migrate verify`
    detects it and measures the effect.
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

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Calls that wrap a model, in a tree that names cross-attention."""
        if file.fsdp1(node.func) != FSDP:
            return
        if sharing_inputs(node, file):
            yield Diagnosis(node, Level.SAFE, ADDED_UP)
        if sharing_inputs(node, file) or "cross_inputs" not in file.project.flags:
            return
        yield Diagnosis(
            node,
            Level.REVIEW,
            "assumes no unit reads a shared input twice (as cross-attention does), or last digits may differ",
            "measure it with fsdp-migrate verify: FSDP2 sums the gradient of such an input in a different order; "
            "fsdp_compat.shard uses FSDP1's order",
        )


def sharing_inputs(call: cst.Call, file: File) -> list[str]:
    """Why ``fully_shard`` alone would add up gradients in another order than what ``call`` wraps does under FSDP1."""
    is_shared = (file.path, file.span(call).line) in file.project.values.sharing
    return [SHARED] if is_shared else []
