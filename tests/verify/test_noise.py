"""How much a run may differ where the program before was given the rounding of the first difference."""

from __future__ import annotations

import pytest

from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.compare.noise import FACTOR, Rounding, measured

DIGIT = 2.0**-23
LOW = 2.0**-7
MOST = 0.01


@pytest.mark.parametrize(
    ("question", "step", "allowed"),
    [
        (Question.LOCAL_GRADIENTS, 0, MOST),
        (Question.LOSS, 0, 0.0),
        # A gradient that is moved by so little leaves some weights as they were.
        (Question.GRADIENTS, 0, DIGIT),
        (Question.WEIGHTS, 0, DIGIT),
        (Question.STATE, 0, DIGIT),
        # The rounded run need not move the loss of a later step, which another run rounds by a digit all the same.
        (Question.LOSS, 1, LOW),
        (Question.NORM, 2, LOW),
        (Question.DATA, 2, 0.0),
        (Question.UNITS, 2, 0.0),
        (Question.SETTINGS, 2, 0.0),
    ],
)
def test_what_is_computed_from_rounded_weights_may_differ_by_a_rounding(
    question: Question, step: int, allowed: float
) -> None:
    assert measured([], Rounding({"0:weight": MOST}, digit=LOW))(question, step, "0:weight ") == FACTOR * allowed
    assert measured([])(question, step, "0:weight ") == 0.0
