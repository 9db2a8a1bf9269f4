"""Objects that carry a model: its use is found in files that nothing but the object reaches."""

from __future__ import annotations

import pytest

from tests.rules.project.object_forms import FORMS, STEPS
from tests.rules.project.test_callbacks import spoken, tree

USED = "program/steps.py"


@pytest.mark.parametrize("form", FORMS)
def test_the_model_in_an_object_is_followed(form: str) -> None:
    assert "FSDP211" in spoken(tree({"steps": STEPS, **FORMS[form]}, True), USED)


@pytest.mark.parametrize("form", FORMS)
def test_an_object_with_another_model_is_left_alone(form: str) -> None:
    assert spoken(tree({"steps": STEPS, **FORMS[form]}, False), USED) == set()


STATE = """\
def work(things):
    things[0].brain.module.weight
    return things[0].brain.state_dict()
"""


@pytest.mark.parametrize("form", ["dataclass by keyword", "constructor of a base in another file", "named tuple"])
def test_the_state_of_the_model_in_an_object_is_that_of_a_sharded_one(form: str) -> None:
    assert spoken(tree({**FORMS[form], "steps": STATE}, True), USED) >= {"FSDP206", "FSDP309"}
    assert spoken(tree({**FORMS[form], "steps": STATE}, False), USED) == set()
