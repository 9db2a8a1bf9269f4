"""Every rule about a wrapped model, its example split over files: it speaks where that is wrapped, and nowhere else."""

from __future__ import annotations

import pytest

from fsdp_rules.engine.registry import all_rules
from fsdp_rules.verdict.result import Changed, Unchanged
from fsdp_rules.verdict.rule import Rule
from tests.rules.helpers import rewrite_tree
from tests.rules.variants import USER, VARIANTS, Example, Variant

EXAMPLES = [(rule, example) for rule in all_rules() if rule.id[4] in "23" and (example := Example.of(rule)) is not None]

#: Rules that also go by a name that FSDP1 alone has, or by a static method of its class, whatever the model is.
BY_NAME = {
    *("FSDP201", "FSDP202", "FSDP203", "FSDP205", "FSDP207", "FSDP208", "FSDP209", "FSDP216", "FSDP221"),
    *("FSDP301", "FSDP302", "FSDP303", "FSDP304", "FSDP305", "FSDP306", "FSDP307", "FSDP308", "FSDP310"),
    *("FSDP312", "FSDP313", "FSDP314", "FSDP315"),
}


def spoken(files: dict[str, str]) -> set[str]:
    """The rules that speak about the file that uses the model."""
    for path, text in files.items():
        compile(text, path, "exec", dont_inherit=True)
    result = rewrite_tree({path: text.encode() for path, text in files.items()}).get(USER, Unchanged())
    assert isinstance(result, Changed | Unchanged), result
    return {found.rule for found in result.findings}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=lambda value: getattr(value, "id", ""))
def test_a_rule_speaks_wherever_the_model_is_used(rule: Rule, example: Example, variant: Variant) -> None:
    assert rule.id in spoken(variant(example, True))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.__name__)
@pytest.mark.parametrize(
    ("rule", "example"),
    [(rule, example) for rule, example in EXAMPLES if rule.id not in BY_NAME],
    ids=lambda value: getattr(value, "id", ""),
)
def test_a_rule_is_silent_where_another_model_is_wrapped(rule: Rule, example: Example, variant: Variant) -> None:
    assert rule.id not in spoken(variant(example, False))
