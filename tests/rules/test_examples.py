"""Every rule's own example: it is rewritten as the rule says, compiles, and does not change again."""

from __future__ import annotations

import pytest

from fsdp_rules.engine.registry import all_rules
from fsdp_rules.verdict.rule import Rule
from tests.rules.helpers import check_findings, check_rewrites, findings

RULES = all_rules()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_example(rule: Rule) -> None:
    assert rule.before, "a rule needs an example"
    check_rewrites(rule.before, rule.after)
    assert rule.id in {found.rule for found in findings(rule.before)}


def test_ids_and_names_are_distinct() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_documentation(rule: Rule) -> None:
    assert len(rule.doc()) > 80


def test_nothing_of_fsdp1_nothing_to_say() -> None:
    check_findings("import torch\n\nmodel = torch.nn.Linear(1, 1)\n", set())
