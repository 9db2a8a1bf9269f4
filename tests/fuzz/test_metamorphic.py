"""No rule falls silent where its example is written another way that means the same, but for the losses on record.

``python scripts/metamorphic.py --record`` writes them anew: the record may only become shorter.
"""

from __future__ import annotations

import json

import pytest

from fsdp_rules.engine.registry import all_rules
from fsdp_rules.verdict.rule import Rule
from tests.fuzz.metamorphic import RECORD, TRANSFORMATIONS, loss, speaks, variants

RULES = [rule for rule in all_rules() if speaks(rule)]
#: Every rule is tried under so many transformations in each run, the next rule under those that follow.
DRAWN = 4
NAMES = tuple(TRANSFORMATIONS)
RECORDED: dict[str, dict[str, int]] = json.loads(RECORD.read_bytes())


def drawn(position: int) -> list[str]:
    """The transformations of the rule at ``position`` in every run."""
    return [NAMES[(DRAWN * position + step) % len(NAMES)] for step in range(DRAWN)]


def silent(rule: Rule, names: list[str]) -> dict[str, int]:
    """How many programs of each transformation ``rule`` is silent about, where nothing else is reported."""
    counts = {}
    for name in names:
        losses = [loss(rule, name, number, files) for number, files in enumerate(variants(rule, name))]
        if count := sum(one is not None and not one.added for one in losses):
            counts[name] = count
    return counts


def recorded(rule: Rule, names: list[str]) -> dict[str, int]:
    """The losses of ``rule`` on record."""
    return {name: RECORDED[name][rule.id] for name in names if rule.id in RECORDED.get(name, {})}


def more(rule: Rule, names: list[str]) -> dict[str, int]:
    """Where ``rule`` is silent about more programs than the record says."""
    known = recorded(rule, names)
    return {name: count for name, count in silent(rule, names).items() if count > known.get(name, 0)}


@pytest.mark.parametrize(
    ("rule", "names"), [pytest.param(rule, drawn(position), id=rule.id) for position, rule in enumerate(RULES)]
)
def test_no_rule_is_lost_in_the_transformations_drawn_for_it(rule: Rule, names: list[str]) -> None:
    assert more(rule, names) == {}


@pytest.mark.whole
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_no_rule_is_lost_in_any_transformation(rule: Rule) -> None:
    assert more(rule, [*NAMES]) == {}


def test_every_transformation_is_drawn_for_some_rule_that_it_changes() -> None:
    tried = {name for position, rule in enumerate(RULES) for name in drawn(position) if any(variants(rule, name))}
    assert tried == set(NAMES)


def test_a_rule_that_is_not_there_is_a_loss() -> None:
    rule = next(rule for rule in RULES if rule.id == "FSDP211")
    found = loss(rule, "rename", 0, {"program/main.py": "import torch\n"})
    assert found is not None
    assert not found.added
