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
