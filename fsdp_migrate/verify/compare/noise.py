"""What a program does not repeat, measured, and how much of it another run may show."""

from __future__ import annotations

import math

from fsdp_migrate.verify.compare.compare import Allowance, Comparison
from fsdp_migrate.verify.compare.difference import Question

#: Two runs are a small sample of what a program can do: differences up to so many times theirs are noise.
FACTOR = 4.0


#: What a backward computes before the optimizer sees it: runs whose gradients are nudged do not show its rounding.
_BEFORE_THE_NUDGE = (Question.LOCAL_GRADIENTS, Question.GRADIENTS)


def measured(comparisons: list[Comparison], nudge: float = 0.0) -> Allowance:
    """Per question and step, ``FACTOR`` times the greatest difference that runs of the same code have shown so far.

    ``nudge``: the relative size of the rounding that one of the runs was given where the optimizer reads gradients.
    """
    seen: dict[Question, dict[int, float]] = {}
    for comparison in comparisons:
        for question, differences in comparison.tally.differences.items():
            for difference in differences:
                if math.isfinite(difference.relative):
                    steps = seen.setdefault(question, {})
                    steps[difference.step] = max(steps.get(difference.step, 0.0), difference.relative)

    def allowance(question: Question, step: int) -> float:
        least = nudge if question in _BEFORE_THE_NUDGE else 0.0
        return FACTOR * max([least, *(size for at, size in seen.get(question, {}).items() if at <= step)])

    return allowance


def tolerated(tolerance: float) -> Allowance:
    """The same relative difference for every value, and none for the data."""
    return lambda question, step: 0.0 if question is Question.DATA else tolerance
