"""Rule for optimizers that are built before the model is wrapped."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.construction._plan.early_optimizers import EarlyOptimizer, early_optimizers, given_optimizers, wraps
from fsdp_rules.file.expressions import is_none
from fsdp_rules.file.file import File, dotted
from fsdp_rules.verdict.diagnosis import Diagnosis, InsertAfter, remove
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class OptimizerFirst(Rule):
    """An optimizer that holds the parameters from before wrapping.

    With `use_orig_params=True` FSDP1 keeps the parameter objects, so such an optimizer trains. FSDP2 makes new ones:
    the old optimizer would step without any effect, and without a word. Where nothing between needs the optimizer its
    statement moves behind the sharding; otherwise `fsdp_compat.relink_optimizer` gives it the new parameters, as it
    does with an optimizer that a function is given together with the model that it wraps.
    """

    id = "FSDP117"
    name = "optimizer-first"
    visits = (cst.Call,)
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model = FSDP(model, use_orig_params=True)
    return model, optimizer
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def build(model):
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Look for optimizers above a call that wraps a model."""
        if isinstance(node, cst.Call) and wraps(node, file):
            for early in early_optimizers(node, file):
                if early.moves:
                    yield self._moved(early, file)
                elif early.speaks:
                    yield self._relinked(early, file)
            for given in given_optimizers(node, file):
                yield self._given(given, node, file)

    def _given(self, given: cst.Param, call: cst.Call, file: File) -> Diagnosis:
        """The verdict about an optimizer that comes with the model: who built it, built it before."""
        name, anchor = given.name.value, file.parent(call)
        target = dotted(anchor.targets[0].target) if isinstance(anchor, cst.Assign) else None
        if target is None or not file.settings.helpers:
            return Diagnosis(
                call,
                Level.MANUAL,
                f"{name} is built before the model is sharded, and holds parameters that the model no longer has then",
                f"build {name} after the sharding",
            )
        relink = file.ref("fsdp_compat.relink_optimizer")
        test = f"if {name} is not None:\n    " if is_none(given.default) else ""
        return Diagnosis(
            call,
            Level.REVIEW,
            f"{name} is taken to be the optimizer of {target}, built before, and is given the new parameters",
            f"better, build {name} after the sharding",
            edits=(InsertAfter(file.statement(call), lambda code: f"{test}{relink}({name}, {target})"),),
        )

    def _moved(self, early: EarlyOptimizer, file: File) -> Diagnosis:
        return Diagnosis(
            early.built,
            Level.REVIEW,
            f"{early.name} is built after {early.model} is sharded, since FSDP2 makes new parameters{early.note}",
            "nothing between the two lines may depend on the optimizer",
            edits=(remove(early.built), InsertAfter(early.anchor, lambda code: code(early.built))),
        )

    def _relinked(self, early: EarlyOptimizer, file: File) -> Diagnosis:
        name, model = early.name, early.model
        if not file.settings.helpers or isinstance(early.anchor, cst.Return) or early.elsewhere:
            return Diagnosis(
                early.built,
                Level.MANUAL,
                f"{name} holds parameters that {model} no longer has once it is sharded",
                f"build {name} after the sharding",
            )
        relink = file.ref("fsdp_compat.relink_optimizer")
        return Diagnosis(
            early.built,
            Level.REVIEW,
            f"{name} is built before {model} is sharded, so it is given the new parameters afterwards{early.note}",
            f"better, build {name} after the sharding",
            edits=(InsertAfter(early.anchor, lambda code: f"{relink}({name}, {model})"),),
        )
