"""What a program does not repeat, and what a rounding does to it: measured, and how much another run may show of it."""

from __future__ import annotations

import functools
import math
import statistics
from dataclasses import dataclass, field

from fsdp_migrate.verify.compare.compare import Allowance, Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question

#: Two runs are a small sample of what a program can do: differences up to so many times theirs are noise.
FACTOR = 4.0

#: What follows from rounded gradients: by less than a last digit in some tensors, and then not at all.
_FROM_GRADIENTS = (Question.GRADIENTS, Question.CLIPPED_GRADIENTS, Question.STATE, Question.WEIGHTS)
#: What is computed from weights, which differ by a rounding from the second step of any optimizer on, whether or not
#: the rounded run happened to move the value that is asked for.
_FROM_THE_WEIGHTS = (Question.FORWARD, Question.LOSS, Question.NORM)
#: The last digit of numbers in these dtypes.
_DIGITS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


@dataclass(frozen=True)
class Rounding:
    """What the run before is given, to see how far a rounding carries.

    ``sizes``: what elements of a parameter's gradient are moved by, relative to the greatest of them. ``scale``: what
    clipped gradients are scaled by, less one. ``digit``: that of the dtype in which the difference was found first.
    """

    sizes: dict[str, float] = field(default_factory=dict)
    scale: float = 0.0
    digit: float = _DIGITS["float32"]

    @property
    def most(self) -> float:
        return max([self.scale, *self.sizes.values()])


NO_ROUNDING = Rounding()


def rounding_of(comparison: Comparison, first: Difference) -> Rounding:
    """The rounding that ``first`` shows: of the gradients that differ in that step, each by what it differs."""
    digit = _DIGITS.get(first.before.partition(",")[0], _DIGITS["float32"])
    least = min(digit, _DIGITS["float32"])
    if first.question is Question.CLIPPED_GRADIENTS:
        return Rounding(scale=max(first.relative, least), digit=digit)
    found = [d for d in comparison.tally.of(Question.GRADIENTS) if d.event == first.event]
    sizes = {difference.name: max(difference.relative, least) for difference in found}
    # What is rounded before the reduction may round to the same sums once, and to others later.
    return Rounding(sizes or dict.fromkeys(comparison.before.steps[first.event].grads, least), digit=digit)


def measured(comparisons: list[Comparison], rounding: Rounding | None = None) -> Allowance:
    """``FACTOR`` times the greatest difference that runs of the same code have shown in a tensor up to that event.

    Or, where that is more, of the middle one of all tensors of the question: two runs show little of one tensor.
    ``rounding``: what one of the runs was given.
    """
    largest: dict[tuple[Question, str], dict[int, float]] = {}
    for comparison in comparisons:
        for question, differences in comparison.tally.differences.items():
            for difference in (each for each in differences if math.isfinite(each.relative)):
                events = largest.setdefault((question, difference.subject), {})
                events[difference.event] = max(events.get(difference.event, 0.0), difference.noise)

    @functools.cache
    def up_to(question: Question, event: int) -> tuple[dict[str, float], float]:
        own = {
            subject: max(sizes)
            for (of, subject), events in largest.items()
            if of is question and (sizes := [size for at, size in events.items() if at <= event])
        }
        return own, statistics.median(own.values()) if own else 0.0

    def allowance(question: Question, event: int, subject: str) -> float:
        own, middle = up_to(question, event)
        least = 0.0 if rounding is None else _least(rounding, question, event)
        return FACTOR * max(least, own.get(subject, 0.0), middle)

    return allowance


def _least(rounding: Rounding, question: Question, event: int) -> float:
    if question is Question.LOCAL_GRADIENTS:
        # The run that was rounded has its rounding after the reduction.
        return max(rounding.most, rounding.digit)
    if question in _FROM_GRADIENTS or (question is Question.INITIAL_WEIGHTS and event > 0):
        return min(rounding.digit, _DIGITS["float32"])
    return rounding.digit if event > 0 and question in _FROM_THE_WEIGHTS else 0.0


def tolerated(tolerance: float) -> Allowance:
    """The same relative difference for every value, and none for the data."""
    return lambda question, event, subject: 0.0 if question is Question.DATA else tolerance
