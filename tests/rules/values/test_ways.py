"""What is followed to an expression, on whatever way, is found in every use of it; without FSDP1 nothing is said."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree
from tests.rules.values.ways import HEAD, MODEL_USES, MODELS, OPERATIONS, PARAMETERS


def program(way: tuple[str, str, dict[str, str]], use: str) -> dict[str, bytes]:
    """The files of a program that goes this way."""
    source, expression, others = way
    line = use.replace("EXPR", expression)
    files = {"main.py": HEAD + source, **{f"{name}.py": text for name, text in others.items()}}
    return {path: text.replace("USE", line).encode() for path, text in files.items()}


def rules_in(files: dict[str, bytes]) -> set[str]:
    """The rules with a finding in one of the files that has to be read by somebody."""
    found = set()
    for result in rewrite_tree(files).values():
        assert isinstance(result, Changed | Unchanged), result
        found |= {one.rule for one in result.findings}
    return found


@pytest.mark.parametrize("use", MODEL_USES)
@pytest.mark.parametrize("way", MODELS)
def test_a_model_is_found(way: str, use: str) -> None:
    text, rules = MODEL_USES[use]
    assert rules & rules_in(program(MODELS[way], text))


@pytest.mark.parametrize("use", OPERATIONS)
@pytest.mark.parametrize("way", PARAMETERS)
def test_a_parameter_is_found(way: str, use: str) -> None:
    text, rules = OPERATIONS[use]
    assert rules & rules_in(program(PARAMETERS[way], text))


#: A model is wrapped beside it, and another one goes the way.
PLAIN = "\n\ndef other(net):\n    return FSDP(net)\n\n\ndef Plain(net):\n    return net\n\n\n"


@pytest.mark.parametrize("way", MODELS)
def test_the_same_way_of_another_model_is_silent(way: str) -> None:
    source, expression, others = MODELS[way]
    plain = (PLAIN + source.replace("FSDP", "Plain"), expression, others)
    # A method that only FSDP1's models have is asked about by its name, of whatever object.
    for use, rules in (asked for name, asked in MODEL_USES.items() if name != "clip_grad_norm_"):
        assert not rules & rules_in(program(plain, use))


@pytest.mark.parametrize("way", PARAMETERS)
def test_the_same_way_of_another_parameter_is_silent(way: str) -> None:
    source, expression, others = PARAMETERS[way]
    plain = (PLAIN + source.replace("FSDP", "Plain"), expression, others)
    for use, rules in OPERATIONS.values():
        assert not rules & rules_in(program(plain, use))
