"""Causes in the optimizer: what it holds, with which settings, from which state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsdp_migrate.verify.causes.cause import Cause, at_step, name_of
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question
from fsdp_migrate.verify.recording.recording import Recording


class OtherGroups(Cause):
    """Parameters are in other groups: flat parameters have one dimension, whatever is in them."""

    name, rule = "other-groups", "FSDP213"
    cure = "Choose the groups by the parameters' names or by the shapes that they had before."

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


class NotResumed(Cause):
    """The run before goes on from a checkpoint, the run after starts its optimizer anew."""

    name, rule = "not-resumed", "FSDP313"
    cure = "Fill the template with get_optimizer_state_dict before dcp.load, and check what was loaded."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question not in (Question.INITIAL_WEIGHTS, Question.SETTINGS, Question.STATE) or first.event > 0:
            return None
        before, after = (_first_count(side) for side in (comparison.before, comparison.after))
        if before is None or after is None or not before > after == 1:
            return None
        return f"the optimizer continues at step {before:g} before and at step 1 after: resumed from an empty template"


def _first_count(recording: Recording) -> float | None:
    """The step count in the optimizer's state after the first recorded step."""
    states: Mapping[str, Mapping[str, Any]] = recording.steps[0].state if recording.steps else {}
    for state in states.values():
        count = state.get("step")
        if isinstance(count, tuple) and count[0] is not None:
            return count[0].scalar  # type: ignore[no-any-return]
        if isinstance(count, (int, float)):
            return float(count)
    return None


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
