"""The example of every rule about configuration is its first test."""

from __future__ import annotations

import pytest

from fsdp_rules.configuration.config_registry import config_rules
from fsdp_rules.configuration.config_rule import ConfigRule
from tests.configs.helpers import check_migrates, migrated


@pytest.mark.parametrize("rule", config_rules(), ids=lambda rule: rule.id)
def test_before_becomes_after(rule: ConfigRule) -> None:
    check_migrates(rule.before, rule.after, rule.file)
    _, findings = migrated(rule.before.lstrip("\n"), rule.file)
    assert rule.id in {finding.rule for finding in findings}


def test_ids_and_names_are_distinct() -> None:
    assert (
        len({rule.id for rule in config_rules()}) == len({rule.name for rule in config_rules()}) == len(config_rules())
    )


@pytest.mark.parametrize("rule", config_rules(), ids=lambda rule: rule.id)
def test_messages_are_short_sentences(rule: ConfigRule) -> None:
    for finding in migrated(rule.before.lstrip("\n"), rule.file)[1]:
        assert len(finding.message) <= 110, finding.message
        assert ";" not in finding.message
