"""Rule for optimizers that are built before the model is wrapped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.construction._plan.early_groups import EarlyGroups, early_groups
from fsdp_rules.construction._plan.early_optimizers import (
    EarlyOptimizer,
    early_optimizers,
    given_optimizers,
    wrapping_calls,
    wraps,
)
from fsdp_rules.construction.call import is_left
from fsdp_rules.file.expressions import is_none, names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.model.flowing import built_early
from fsdp_rules.model.run_evidence import is_seen_late
from fsdp_rules.model.wrapping import wrapped_module
from fsdp_rules.verdict.diagnosis import Diagnosis, InsertAfter, InsertBefore, remove
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class OptimizerFirst(Rule):
    """Optimizer built before sharding.

    With `use_orig_params=True` FSDP1 keeps the parameter objects, so such an optimizer trains. FSDP2 makes new ones:
    the steps of the old optimizer would silently have no effect. If no code in between needs the optimizer, its
    statement is moved after the sharding. Otherwise `fsdp_compat.relink_optimizer` gives it the new parameters. This
    also works if a function gets the optimizer together with the model that it wraps.
    """

    id = "FSDP117"
    name = "optimizer-first"
    markers = ("configure_optimizers",)
    what_to_test = "Check that every parameter has changed after the first optimizer step."
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

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Look for optimizers above a call that wraps a model."""
        if wraps(node, file):
            for early in early_optimizers(node, file):
                if not early.moves and not early.speaks:
                    continue
                said = self._moved(early, file) if early.moves else self._relinked(early, file)
                # What a human has to change first is nothing to write more code around.
                yield _by_hand(early) if said.edits and is_left(node, file) else said
            for groups in early_groups(node, file):
                said = self._collected(groups, node, file)
                yield _collected_by_hand(groups) if said.edits and is_left(node, file) else said
            for given in given_optimizers(node, file):
                yield self._given(given, node, file)
        # fsdp_compat.shard relinks the optimizers of a process, or stops the step of those that FSDP1 does not train.
        if not file.settings.prefers_helpers:
            yield from self._stale(node, file)

    def _stale(self, node: cst.Call, file: File) -> Iterator[Diagnosis]:
        """The verdict about an optimizer whose model something else wraps afterwards."""
        model = built_early(node, file)
        if model is None or is_seen_late(node, file):
            return
        owner = file.function(node) or file.module
        handled = [early for call in wrapping_calls(owner, file) for early in early_optimizers(call, file)]
        if not any(node in set(file.inside(early.built, cst.Call)) for early in handled):
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"this optimizer is built before {model} is sharded elsewhere: its step would train nothing",
                f"build it after the sharding, or call fsdp_compat.relink_optimizer(optimizer, {model}) there. If "
                f"that call is fsdp_compat.shard with use_orig_params=True, it relinks the optimizer and nothing is "
                f"needed",
            )

    def _given(self, given: cst.Param, call: cst.Call, file: File) -> Diagnosis:
        """The verdict about an optimizer that comes with the model: who built it, built it before."""
        name, anchor = given.name.value, file.parent(call)
        target = dotted(anchor.targets[0].target) if isinstance(anchor, cst.Assign) else None
        if target is None or not file.settings.may_help:
            return Diagnosis(
                call,
                Level.MANUAL,
                f"{name} is built before the model is sharded, so it holds parameters that are no longer in the model",
                f"build {name} after the model is sharded",
            )
        relink, guard = file.ref("fsdp_compat.relink_optimizer"), file.ref("fsdp_compat.guard_optimizers")
        module = wrapped_module(call) or call
        test = f"if {name} is not None:\n    " if is_none(given.default) else ""
        return Diagnosis(
            call,
            Level.REVIEW,
            f"{name} gets the new parameters, assuming it is the optimizer of {target} and was built before",
            f"if possible, build {name} after the model is sharded",
            edits=(
                InsertBefore(file.statement(call), lambda code: f"{guard}({code(module)})"),
                InsertAfter(file.statement(call), lambda code: f"{test}{relink}({name}, {target})"),
            ),
        )

    def _collected(self, groups: EarlyGroups, call: cst.Call, file: File) -> Diagnosis:
        """The verdict about parameters that are collected before the wrap, for an optimizer that is built after it."""
        name, model, collected = groups.name, groups.model, groups.collected
        if groups.moves:
            said = f"{name} is collected after {model} is sharded, because FSDP2 makes new parameters{groups.note}"
            edits = (remove(collected), InsertAfter(groups.anchor, lambda code: code(collected)))
            return Diagnosis(collected, Level.REVIEW if groups.note else Level.SAFE, said, edits=edits)
        wrap, statement = file.statement(call), file.statement(groups.optimizer)
        target = dotted(wrap.targets[0].target) if isinstance(wrap, cst.Assign) else None
        built = dotted(statement.targets[0].target) if isinstance(statement, cst.Assign) else None
        if target is None or built is None or not file.settings.may_help or groups.elsewhere:
            return _collected_by_hand(groups)
        relink, guard = file.ref("fsdp_compat.relink_optimizer"), file.ref("fsdp_compat.guard_optimizers")
        module = wrapped_module(call) or call
        return Diagnosis(
            groups.optimizer,
            Level.REVIEW,
            f"{name} is collected before {model} is sharded, and {built} gets the new parameters{groups.note}",
            f"if possible, collect {name} after the model is sharded",
            edits=(
                InsertBefore(wrap, lambda code: f"{guard}({code(module)})"),
                InsertAfter(statement, lambda code: f"{relink}({built}, {target})"),
            ),
        )

    def _moved(self, early: EarlyOptimizer, file: File) -> Diagnosis:
        return Diagnosis(
            early.built,
            Level.REVIEW if early.note or _passes_its_parts(early, file) else Level.SAFE,
            f"{early.name} is moved after the sharding of {early.model}, because FSDP2 makes new "
            f"parameters{early.note}",
            edits=(remove(early.built), InsertAfter(early.anchor, lambda code: code(early.built))),
        )

    def _relinked(self, early: EarlyOptimizer, file: File) -> Diagnosis:
        name, model = early.name, early.model
        if not file.settings.may_help or isinstance(early.anchor, cst.Return) or early.elsewhere:
            return _by_hand(early)
        relink = file.ref("fsdp_compat.relink_optimizer")
        return Diagnosis(
            early.built,
            Level.REVIEW,
            f"{name} is built before {model} is sharded and gets the new parameters afterwards{early.note}",
            f"if possible, build {name} after the model is sharded",
            edits=(InsertAfter(early.anchor, lambda code: f"{relink}({name}, {model})"),),
        )


def _passes_its_parts(early: EarlyOptimizer, file: File) -> bool:
    """Whether the statement of the optimizer is moved past one that names something that the optimizer is given."""
    between = file.block(early.built)[(file.layout.number(early.built) or 0) + 1 : file.layout.number(early.anchor)]
    given = early.built.value.args if isinstance(early.built.value, cst.Call) else ()
    read = {entry.value for argument in given for entry in names_in(argument.value)}
    return any(entry.value in read for statement in between for entry in names_in(statement))


def _collected_by_hand(groups: EarlyGroups) -> Diagnosis:
    return Diagnosis(
        groups.optimizer,
        Level.MANUAL,
        f"{groups.name} keeps parameters that {groups.model} loses when it is sharded, so its steps train nothing",
        f"collect {groups.name} after the model is sharded",
    )


def _by_hand(early: EarlyOptimizer) -> Diagnosis:
    return Diagnosis(
        early.built,
        Level.MANUAL,
        f"{early.name} keeps parameters that {early.model} loses when it is sharded",
        f"build {early.name} after the model is sharded",
    )
