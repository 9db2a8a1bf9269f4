"""Branches that have an FSDP2 twin, and what only looks like one."""

from __future__ import annotations

import ast

import pytest

from fsdp_rules.project.gates import gated_lines

GATED = "if chosen:\n    fully_shard(model)\nelse:\n    model = FSDP(model)\n"


def test_the_arms_of_a_choice_are_gated() -> None:
    assert gated_lines(ast.parse(GATED), GATED) == {2: True, 3: True, 4: True}


@pytest.mark.parametrize("above", ["\x0c\n", "x = '\\x0c' # \x0c\x1c\u2028\n"])
def test_lines_are_those_of_the_parser(above: str) -> None:
    text = f"{above}{GATED}"
    assert gated_lines(ast.parse(text), text) == {3: True, 4: True, 5: True}


def test_a_parameter_with_a_name_of_fsdp2_is_no_twin() -> None:
    text = "if done:\n    return_early()\nelse:\n    def é(fully_shard, model):\n        return FSDP(model)\n"
    assert gated_lines(ast.parse(text), text) == {}
