"""Rule for the method ``register_comm_hook``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.diagnosis import Diagnosis
from fsdp_rules.finding import Level
from fsdp_rules.project import Certainty
from fsdp_rules.rule import Rule
from fsdp_rules.source import File
from fsdp_rules.values import bind
from fsdp_rules.wrapping import held_at

#: Hooks of torch's own that fsdp_compat puts in FSDP2's terms.
KNOWN = frozenset({"allreduce_hook", "bf16_compress_hook", "fp16_compress_hook", "reduce_scatter_hook"})
HOOKS = "torch.distributed.algorithms._comm_hooks"


class CommHook(Rule):
    """A communication hook of the user's own.

    FSDP1's hook takes the place of the whole reduction, averaging included; FSDP2 has no hook of that shape. The two
    hooks that compress gradients say nothing that `MixedPrecisionPolicy(reduce_dtype=...)` does not say.
    """

    id = "FSDP209"
    name = "comm-hook"
    visits = (cst.Call,)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model, state, hook):
    model = FSDP(model)
    model.register_comm_hook(state, hook)
    return model
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model, state, hook):
    fully_shard(model)
    # TODO(fsdp-migrate FSDP209): FSDP2 has no communication hook that replaces the reduction of gradients
    model.register_comm_hook(state, hook)
    return model
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """List hooks of a wrapped model; DistributedDataParallel has a method of the same name."""
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
            return
        if node.func.attr.value != "register_comm_hook":
            return
        if file.settings.to == "shim" and _is_known(node, file):
            return
        held = held_at(node.func.value, file)
        if held is Certainty.YES or (held is Certainty.MAYBE and "ddp" not in file.project.flags):
            yield Diagnosis(
                node,
                Level.MANUAL,
                "FSDP2 has no communication hook that replaces the reduction of gradients",
                "fp16_compress_hook and bf16_compress_hook are MixedPrecisionPolicy(reduce_dtype=...); a hook after "
                "the reduction is set_all_reduce_hook, another reduction set_custom_reduce_scatter (torch 2.9)",
            )


def _is_known(call: cst.Call, file: File) -> bool:
    arguments = bind(call, ("state", "hook")) or {}
    full = file.resolved(file.value(arguments["hook"])) if "hook" in arguments else None
    return full is not None and full.startswith(HOOKS) and full.rpartition(".")[2] in KNOWN
