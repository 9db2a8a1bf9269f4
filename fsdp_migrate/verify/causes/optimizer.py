"""Causes in the optimizer: what it holds, with which settings, from which state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsdp_migrate.verify.causes.cause import Cause, at_step, name_of
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question
from fsdp_migrate.verify.compare.gap import state_gap


class OtherGroups(Cause):
    """Parameters are in other groups: flat parameters have one dimension, whatever is in them."""

    name, rule = "other-groups", "FSDP213"
    cure = "Choose the groups by parameter name, or by the shapes before sharding."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.SETTINGS or first.what != "weight_decay":
            return None
        known = comparison.before.parameters
        found = [d for d in at_step(comparison, Question.SETTINGS, first) if d.what == first.what]
        flat = {len(known[difference.name].shape) <= 1 for difference in found if difference.name in known}
        if len(flat) != 1 or len(found) == len(comparison.pairs.keys):
            return None
        which = "1-D parameters" if flat.pop() else "parameters of 2 and more dimensions"
        return f"weight decay of {which} is {first.before} before and {first.after} after"


class OtherSetting(Cause):
    """The optimizer steps with another learning rate, or another setting of a group."""

    name = "other-setting"
    cure = "Build the optimizer and its scheduler with the same settings."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.SETTINGS:
            return None
        name = name_of(comparison, first.name)
        return f"{first.what} of {name} is {first.before} before and {first.after} after"


class StaleOptimizer(Cause):
    """The optimizer holds tensors that are no longer the model's parameters, or not all that are trained."""

    name, rule = "stale-optimizer", "FSDP117"
    cure = "Build the optimizer after fully_shard, from model.parameters()."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question < Question.GRADIENTS or first.optimizer >= len(comparison.after.optimizers):
            return None
        before = set(comparison.before.optimizers[first.optimizer].missing)
        back = {after: key for key, after in comparison.pairs.keys.items()}
        lost = [back[key] for key in comparison.after.optimizers[first.optimizer].missing if key in back]
        lost = [key for key in lost if key not in before]
        if not lost:
            return None
        unknown = any(key.startswith("-:") for g in comparison.after.optimizers[first.optimizer].groups for key in g)
        has = "holds tensors that the model no longer has, and lacks" if unknown else "lacks"
        return f"the optimizer {has} {name_of(comparison, *lost)}"


class SharedMoments(Cause):
    """The run before goes on from a state that has the values of another one: FSDP1 loaded both from one tensor."""

    name, rule = "shared-moments", "FSDP407"
    cure = "Compare with offload_to_cpu=False in FSDP1's optimizer state dict: the new run loads both states correctly."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.INITIAL_STATE or not first.what:
            return None
        sides = [side.optimizers[first.optimizer].state for side in (comparison.before, comparison.after)]
        moved = [d.name for d in comparison.tally.of(first.question) if d.what == first.what]
        twins = {name: twin(sides[0].get(name, {}), first.what) for name in moved}
        kept = [twin(sides[1].get(comparison.pairs.keys.get(name, name), {}), first.what) for name in moved]
        other = twins[first.name]
        if other is None or None in twins.values() or any(kept):
            return None
        return (
            f"{first.what} of {name_of(comparison, *moved)} has the values of {other} before: FSDP1's state with "
            "offload_to_cpu=True is one tensor for both on the CPU"
        )


def twin(states: Mapping[str, Any], what: str) -> str | None:
    """The other state of a parameter that has the same elements, where those are no zeros."""
    mine = states.get(what)
    if not isinstance(mine, tuple) or all(copy is None or copy.is_zero for copy in mine):
        return None
    alike = (name for name, value in states.items() if name != what and state_gap(mine, value) is None)
    return next(alike, None)
