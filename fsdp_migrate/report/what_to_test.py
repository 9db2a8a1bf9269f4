"""What shows that a change was right, by the id of the rule that made it."""

from __future__ import annotations

from fsdp_migrate.check.weakening import weakening_rules
from fsdp_migrate.checkpoints.judge.checkpoint_rules import NAMES, WHAT_TO_TEST
from fsdp_migrate.tree.notebooks import CELL_RULE
from fsdp_rules.configuration.config_registry import config_rules
from fsdp_rules.engine import catalogue
from fsdp_rules.verdict.what_to_test import HOSTED, UNCHECKED


def what_to_test(rule: str) -> str:
    """The sentence of the rule with this id, whatever it is about."""
    if rule in NAMES:
        return WHAT_TO_TEST
    if rule in weakening_rules.NAMES:
        return weakening_rules.WHAT_TO_TEST
    if any(one.id == rule for one in config_rules()):
        return HOSTED
    return UNCHECKED if rule == CELL_RULE else catalogue.what_to_test(rule)
