"""Parameters that are handed on without their model: what is done to them is found in the file that does it."""

from __future__ import annotations

import pytest

from tests.rules.project.parameter_forms import USES, WAYS
from tests.rules.project.test_callbacks import spoken, tree

USED = "program/steps.py"
#: Every use in one way, and one use in every way.
PAIRS = [("argument", use) for use in USES] + [(way, "p.data = other") for way in WAYS]


@pytest.mark.parametrize(("way", "use"), PAIRS)
def test_what_is_done_to_parameters_is_found_where_they_arrive(way: str, use: str) -> None:
    rule, steps = USES[use]
    assert rule in spoken(tree({"steps": steps, **WAYS[way]}, True), USED)


@pytest.mark.parametrize(("way", "use"), PAIRS)
def test_parameters_of_another_model_are_left_alone(way: str, use: str) -> None:
    assert spoken(tree({"steps": USES[use][1], **WAYS[way]}, False), USED) == set()
