"""Rule for optimizers that may have been built before sharding, in code that cannot be followed."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.construction._plan.early_optimizers import untrained
from fsdp_rules.file.expressions import is_repeatable, last_name
from fsdp_rules.file.file import File, dotted
from fsdp_rules.verdict.diagnosis import Diagnosis, InsertBefore
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

UNSEEN = "an optimizer comes from code this tool cannot follow: built before sharding, its step would train nothing"
#: What may be done with a model before it is wrapped, and gives its parameters to nobody.
HARMLESS = frozenset({"bool", "callable", "getattr", "hasattr", "id", "isinstance", "print", "repr", "str", "type"})


class UnseenOptimizers(Rule):
    """Optimizer of unknown origin.

    FSDP2 makes new parameters, and an optimizer that was built before still holds the old ones: its steps train
    nothing. Where the code that builds an optimizer can be followed, FSDP117 moves, relinks or reports it. Where one
    comes from a registry, a library or a container, `fsdp_compat.guard_optimizers(model)` above the sharding makes the
    first step of such an optimizer raise. The line can be removed once the optimizer is known to be built afterwards.
    """

    id = "FSDP125"
    name = "unseen-optimizers"
    what_to_test = "Take one optimizer step: it raises if the optimizer was built before the model was sharded."
    before = """
import optimizers
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(model, batches, config):
    optimizer = optimizers.REGISTRY[config.optimizer](model)
    model = FSDP(model, use_orig_params=True)
    for batch in batches:
        model(batch).backward()
        optimizer.step()
"""
    after = """
import fsdp_compat
import optimizers
from torch.distributed.fsdp import fully_shard

def train(model, batches, config):
    optimizer = optimizers.REGISTRY[config.optimizer](model)
    fsdp_compat.guard_optimizers(model)
    fully_shard(model)
    for batch in batches:
        model(batch).backward()
        optimizer.step()
"""


def about_unseen_optimizers(call: cst.Call, module: cst.BaseExpression, file: File) -> Diagnosis | None:
    """What to say about a constructor that becomes ``fully_shard``, None where every optimizer is accounted for."""
    if untrained(call) or not file.project.optimizers.has_unseen(file.project):
        return None
    if isinstance(module, cst.Call) or _is_fresh(module, call, file):
        return None
    if not file.settings.may_help or not is_repeatable(module):
        return Diagnosis(
            call,
            Level.MANUAL,
            UNSEEN,
            "build every optimizer after this call, and silence this finding once that is so",
            rule=UnseenOptimizers.id,
        )
    guard = file.ref("fsdp_compat.guard_optimizers")
    return Diagnosis(
        call,
        Level.REVIEW,
        UNSEEN.replace("its step would train nothing", "its first step raises now"),
        "build every optimizer after this call, then remove guard_optimizers",
        edits=(InsertBefore(file.statement(call), lambda code: f"{guard}({code(module)})"),),
        rule=UnseenOptimizers.id,
    )


def _makes(value: cst.BaseExpression | None, wrap: cst.Call) -> bool:
    """Whether ``value`` makes a model (``Net(...)``, ``Net.from_pretrained(...)``), or is the ``wrap`` of one."""
    if value is wrap:
        return True
    name = last_name(value.func) if isinstance(value, cst.Call) else ""
    return name[:1].isupper() or name.startswith("from_")


def _is_fresh(module: cst.BaseExpression, call: cst.Call, file: File) -> bool:
    """Whether the function makes the model itself, and before ``call`` gives nobody it or its parameters."""
    root = (dotted(module) or "").partition(".")[0]
    scope = file.scope(call)
    made = file.bindings.found.get((scope, root), [])
    if not root or root == "self" or not made or not all(_makes(entry.value, call) for entry in made):
        return False
    line = file.span(call).line
    for use in file.uses(root):
        if file.scope(use) != scope or file.span(use).line >= line:
            continue
        parent = file.parent(use)
        if isinstance(parent, cst.Attribute) and parent.attr.value in ("parameters", "named_parameters"):
            return False
        if isinstance(parent, cst.Arg | cst.Element | cst.DictElement | cst.Return | cst.Assign):
            owner = file.parent(parent)
            if not (isinstance(owner, cst.Call) and dotted(owner.func) in HARMLESS):
                return False
    return True
