"""A state is taken outside of ``state_dict_type`` where no such context is around the call."""

from __future__ import annotations

import ast

import pytest

from fsdp_rules.project.taking import takes_state


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("state = model.state_dict()", True),
        ("model.train()", False),
        ("with FSDP.state_dict_type(model, FULL):\n    state = model.state_dict()", False),
        ("with open(path) as file, FSDP.state_dict_type(model, FULL):\n    state = model.state_dict()", False),
        ("with open(path) as file:\n    state = model.state_dict()", True),
        ("with FSDP.state_dict_type(model, FULL):\n    pass\nstate = model.state_dict()", True),
        ("async def save():\n    async with lock:\n        return model.state_dict()", True),
    ],
)
def test_where_a_state_is_taken(source: str, expected: bool) -> None:
    assert takes_state(ast.parse(source)) is expected
