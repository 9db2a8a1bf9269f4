"""Causes in how gradients are clipped, and in the norm that clipping returns."""

from __future__ import annotations

import math
from abc import abstractmethod

from fsdp_migrate.verify.causes.cause import HOW_FAR, Cause, at_step, steps_of
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question


class OtherLimit(Cause):
    """Gradients are clipped to another norm."""

    name, rule = "other-clip-limit", "FSDP201"
    cure = "Pass the same max_norm."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question not in (Question.NORM, Question.CLIPPED_GRADIENTS):
            return None
        before, after = (step.ranks[0].clips for step in steps_of(comparison, first))
        for one, two in zip(before, after, strict=False):
            if one.limit != two.limit:
                return f"gradients are clipped to {one.limit} before and to {two.limit} after"
        return None


class _OtherCalls(Cause):
    """More or fewer calls clip gradients in a step than before."""

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.NORM or first.gap is not None:
            return None
        before, after = (int(text.split()[0]) for text in (first.before, first.after))
        if not self.fits(before, after):
            return None
        return f"gradients are clipped {before}x per step before and {after}x after"

    @abstractmethod
    def fits(self, before: int, after: int) -> bool:
        """Whether so many calls are this cause."""


class ClippedTwice(_OtherCalls):
    """More calls clip gradients in a step than before."""

    name, rule = "clipped-twice", "FSDP215"
    cure = "Clip once per step, over all parameters together."

    def fits(self, before: int, after: int) -> bool:
        return after > before


class NotClipped(_OtherCalls):
    """Fewer calls clip gradients in a step than before."""

    name, rule = "not-clipped", "FSDP201"
    cure = "Call torch.nn.utils.clip_grad_norm_ where FSDP1's method was called."

    def fits(self, before: int, after: int) -> bool:
        return after < before


class LoggedNorm(Cause):
    """What ``.item()`` reads off the norm is one rank's part of it; the gradients are clipped alike."""

    name, rule = "logged-norm", "FSDP201"
    cure = "Call full_tensor() on the norm before item()."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.NORM or first.gap is None or first.gap.ratio is None:
            return None
        if at_step(comparison, Question.GRADIENTS, first) or at_step(comparison, Question.CLIPPED_GRADIENTS, first):
            return None
        return f"the logged norm is {first.gap.ratio:.4g} times the old one, but the clipped gradients are equal"


class OrderOfNorm(Cause):
    """Gradients are equal until clipping scales them by a norm that was added up in another order."""

    name, rule = "order-of-norm", "FSDP201"
    cure = "FSDP2 sums the squares in a different order; " + HOW_FAR
    is_rounding = True

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.CLIPPED_GRADIENTS:
            return None
        before, after = steps_of(comparison, first)
        one, two = (step.ranks[0].clips for step in (before, after))
        if not one or len(one) != len(two) or one[0].value is None or two[0].value is None:
            return None
        norms = [(a.value.scalar, b.value.scalar) for a, b in zip(one, two, strict=True) if a.value and b.value]
        close = all(a is not None and b is not None and math.isclose(a, b, rel_tol=1e-5) for a, b in norms)
        moved = at_step(comparison, Question.CLIPPED_GRADIENTS, first)
        if not close or all(a == b for a, b in norms) or any(found.relative > 1e-5 for found in moved):
            return None
        return "the gradient norm is summed in a different order, and its last digit scales the clipped gradients"
