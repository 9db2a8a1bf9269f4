"""What a program does not repeat, measured, and how much of it another run may show."""

from __future__ import annotations

import math

from fsdp_migrate.verify.compare.compare import Allowance, Comparison
from fsdp_migrate.verify.compare.difference import Question

#: Two runs are a small sample of what a program can do: differences up to so many times theirs are noise.
FACTOR = 4.0


#: What a backward computes before the optimizer sees it: runs whose gradients are nudged do not show its rounding.
_BEFORE_THE_NUDGE = (Question.LOCAL_GRADIENTS, Question.GRADIENTS)
#: What the nudged gradients are made into: by less than a last digit in some tensors, and then not at all.
_AFTER_THE_NUDGE = (Question.CLIPPED_GRADIENTS, Question.STATE, Question.WEIGHTS)
#: What is computed from weights, which differ by a rounding from the second step of any optimizer on, whether or not
#: the nudged run happened to move the value that is asked for.
_FROM_THE_WEIGHTS = (Question.FORWARD, Question.LOSS, Question.NORM)


def measured(comparisons: list[Comparison], nudge: float = 0.0) -> Allowance:
    """Per question and event, ``FACTOR`` times the greatest difference that runs of the same code have shown so far.

    ``nudge``: the relative size of the rounding that one of the runs was given where the optimizer reads gradients.
    """
    seen: dict[Question, dict[int, float]] = {}
    for comparison in comparisons:
        for question, differences in comparison.tally.differences.items():
            for difference in differences:
                if math.isfinite(difference.relative):
                    events = seen.setdefault(question, {})
                    events[difference.event] = max(events.get(difference.event, 0.0), difference.relative)

    def allowance(question: Question, event: int) -> float:
        rounded = question in (*_BEFORE_THE_NUDGE, *_AFTER_THE_NUDGE) or (event > 0 and question in _FROM_THE_WEIGHTS)
        least = nudge if rounded else 0.0
        return FACTOR * max([least, *(size for at, size in seen.get(question, {}).items() if at <= event)])

    return allowance


def tolerated(tolerance: float) -> Allowance:
    """The same relative difference for every value, and none for the data."""
    return lambda question, event: 0.0 if question is Question.DATA else tolerance
