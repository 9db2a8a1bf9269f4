"""Rule for the method ``register_comm_hook``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import bind
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import call_with
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrappers import for_others, other_wrapper
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: torch's own hooks, which fsdp_compat translates for FSDP2.
KNOWN = frozenset({"allreduce_hook", "bf16_compress_hook", "fp16_compress_hook", "reduce_scatter_hook"})
HOOKS = "torch.distributed.algorithms._comm_hooks"
COMPARE = "compare the losses of the first steps with those of FSDP1"
DIFFERS = (
    "the hook gets a unit's gradients ordered by rank (FSDP1: by parameter), on torch 2.9 or newer, and not with "
    "NO_SHARD"
)


class CommHook(Rule):
    """register_comm_hook().

    FSDP1's hook replaces the whole reduction, averaging included. `fsdp_compat.register_comm_hook` makes FSDP2 call it.
    It receives the elements of the flat gradient in a different order. torch's own compression hooks become the
    reduction dtype of FSDP2.
    """

    id = "FSDP209"
    name = "comm-hook"
    markers = ("register_comm_hook",)
    open_world = True
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
import fsdp_compat
from torch.distributed.fsdp import fully_shard

def build(model, state, hook):
    fully_shard(model)
    fsdp_compat.register_comm_hook(model, state, hook)
    return model
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Hooks of a wrapped model; DistributedDataParallel has a method of the same name."""
        if not isinstance(node.func, cst.Attribute):
            return
        if node.func.attr.value != "register_comm_hook":
            return
        model = node.func.value
        found = sharded(model, file)
        held = found.certainty
        if held is Certainty.NO and (found.is_excluded or not _is_for_fsdp1(node, model, file)):
            return
        others = other_wrapper(model, file) is not Certainty.NO
        if held is Certainty.NO and others:
            yield Diagnosis(node, Level.REVIEW, f"assumes {file.code(model)} is a DDP model and keeps its hook")
            return
        known = _is_known(node, file)
        if file.settings.to == "shim":
            if not known:
                yield Diagnosis(node, Level.REVIEW, DIFFERS, COMPARE)
        elif (held is not Certainty.YES and not others) or not file.settings.may_help:
            yield Diagnosis(
                node,
                Level.MANUAL,
                "FSDP2 modules have no method for a hook that replaces the reduction of gradients",
                "call fsdp_compat.register_comm_hook(model, state, hook)",
            )
        else:
            helper = file.ref("fsdp_compat.register_comm_hook")
            native = Diagnosis(
                node,
                Level.SAFE if known else Level.REVIEW,
                "torch's compression hook becomes the reduce_dtype of FSDP2" if known else DIFFERS,
                "" if known else COMPARE,
                edits=(Replace(node, lambda code: call_with(helper, code(model), node, code, file)),),
            )
            yield for_others(native, node, model, file) if others else native


def _is_for_fsdp1(call: cst.Call, model: cst.BaseExpression, file: File) -> bool:
    """Whether a hook on an unknown ``model`` is passed as FSDP1 expects it, and nothing suggests DDP."""
    made = [entry.func for entry in file.values(model) if isinstance(entry, cst.Call)]
    if any((file.resolved(func) or "").endswith(".DistributedDataParallel") for func in made):
        return False
    return "hook" in (bind(call, ("state", "hook")) or {})


def _is_known(call: cst.Call, file: File) -> bool:
    arguments = bind(call, ("state", "hook")) or {}
    full = file.resolved(file.value(arguments["hook"])) if "hook" in arguments else None
    return full is not None and full.startswith(HOOKS) and full.rpartition(".")[2] in KNOWN
