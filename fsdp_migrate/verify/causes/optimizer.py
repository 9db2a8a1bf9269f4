"""Causes in the optimizer: what it holds, with which settings, from which state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fsdp_migrate.verify.causes.cause import Cause, at_step, name_of, steps_of
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question
from fsdp_migrate.verify.recording.recording import Recording, Step
from fsdp_migrate.verify.recording.value import Value

#: The last digit of float32, to which each element of a moment is rounded in a step, and how many of them are allowed.
_DIGIT, _SURE = 2.0**-23, 8


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
    """The run before goes on from a checkpoint, the run after starts its optimizer from scratch."""

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


class SharedMoments(Cause):
    """The run before steps with a first moment that has the values of the second: FSDP1 loaded both from one tensor.

    What the moments were before a step follows from what they are after it and from the gradient: sums are linear.
    """

    name, rule = "shared-moments", "FSDP407"
    cure = "Compare with offload_to_cpu=False in FSDP1's optimizer state dict: the run after loads both as they were."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.STATE or first.what != "exp_avg":
            return None
        before, after = steps_of(comparison, first)
        moved = [found.name for found in at_step(comparison, Question.STATE, first) if found.what == first.what]
        lost = {name: _is_shared(comparison.before, before, name) for name in moved}
        kept = [_is_shared(comparison.after, after, comparison.pairs.keys.get(name, name)) for name in moved]
        names = [name for name, shared in lost.items() if shared]
        if not names or False in lost.values() or True in kept:
            return None
        return (
            f"exp_avg of {name_of(comparison, *names)} has the values of exp_avg_sq before: FSDP1's state with "
            "offload_to_cpu=True is one tensor for both on the CPU"
        )


def _is_shared(recording: Recording, step: Step, key: str) -> bool | None:
    """Whether both moments of a parameter had the same values before this step; None where it cannot be told."""
    groups = recording.optimizers[step.optimizer].groups
    settings = next((own for names, own in zip(groups, step.settings, strict=False) if key in names), {})
    first, second = (_whole(step.state.get(key, {}).get(name)) for name in ("exp_avg", "exp_avg_sq"))
    gradient = _whole(step.grads.get(key))
    betas = settings.get("betas")
    if first is None or second is None or gradient is None or not isinstance(betas, list) or not all(betas):
        return None
    decoupled = settings.get("decoupled_weight_decay", recording.optimizers[step.optimizer].name == "AdamW")
    if settings.get("weight_decay") and not decoupled:
        # What the moments are made of is not the recorded gradient alone.
        return None
    sign = -1.0 if settings.get("maximize") else 1.0
    one = (first.total - (1 - betas[0]) * sign * gradient.total) / betas[0]
    two = (second.total - (1 - betas[1]) * gradient.l2**2) / betas[1]
    greatest = first.greatest / betas[0] + second.greatest / betas[1]
    rounding = _SURE * _DIGIT * math.sqrt(max(first.numel, 1)) * greatest
    return None if abs(two) <= rounding else abs(one - two) <= rounding


def _whole(state: Any) -> Value | None:
    return state[0] if isinstance(state, tuple) else None
