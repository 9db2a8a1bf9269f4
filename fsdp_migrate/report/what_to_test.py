"""What shows that a change was right, by the id of the rule that made it."""

from __future__ import annotations

from fsdp_migrate.checkpoints.judge.checkpoint_rules import NAMES, WHAT_TO_TEST
from fsdp_migrate.tree.notebooks import CELL_RULE
from fsdp_rules.configuration.config_registry import config_rules
from fsdp_rules.engine import catalogue
from fsdp_rules.verdict.what_to_test import HOSTED, UNCHECKED


def what_to_test(rule: str) -> str:
    """The sentence of the rule with this id, whether it is about code, a notebook, a configuration or a checkpoint."""
    if rule in NAMES:
        return WHAT_TO_TEST
    if any(one.id == rule for one in config_rules()):
        return HOSTED
    return UNCHECKED if rule == CELL_RULE else catalogue.what_to_test(rule)
