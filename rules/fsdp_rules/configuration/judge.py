"""What is said about a block of settings, and the one change of it."""

from __future__ import annotations

from collections.abc import Callable

from fsdp_rules.configuration.block import Block, Change, Verdict, merged
from fsdp_rules.configuration.config_registry import config_rules
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.config_version import ConfigVersion
from fsdp_rules.configuration.launched import ACCELERATE
from fsdp_rules.verdict.finding import Level

_KEPT = "these settings are kept as they are, because of {}"
Said = tuple[ConfigRule, Verdict]


def judge(block: Block, wanted: Callable[[ConfigRule, Verdict], bool]) -> tuple[list[Said], Change]:
    """What is said about a block, and the change of it: all of it, or none where a part cannot change.

    ``wanted`` says whether a verdict is to be heard: a user may have switched its rule off.
    """
    every = [
        (rule, verdict)
        for rule in config_rules()
        if block.dialect in rule.dialects
        for verdict in map(_editable, rule.visit(block))
    ]
    told = [one for one in every if wanted(*one)]
    # Half of a block means something else than the whole: what a user leaves out keeps the rest.
    left_out = [one for one in every if one not in told and (one[1].keeps or one[1].change != Change())]
    stays = [verdict.setting.written if verdict.setting else rule.id for rule, verdict in told if verdict.keeps]
    stays += [rule.id for rule, _ in left_out]
    if not stays:
        return told, merged(verdict.change for _, verdict in told)
    left = [(rule, verdict) for rule, verdict in told if verdict.level in (Level.MANUAL, Level.INFO)]
    if any(verdict.change != Change() for _, verdict in told):
        whole = Verdict(None, Level.MANUAL, _KEPT.format(", ".join(dict.fromkeys(stays))))
        reasons = [rule for rule, verdict in told if verdict.keeps] or [rule for rule, _ in left_out]
        left.append((reasons[0] if block.dialect != ACCELERATE else ConfigVersion(), whole))
    return left, Change()


def _editable(verdict: Verdict) -> Verdict:
    """The verdict, or the reason why its setting cannot be edited."""
    setting = verdict.setting
    if setting is None or not setting.fixed or verdict.change == Change():
        return verdict
    return Verdict(
        setting,
        Level.MANUAL,
        f"{setting.written} cannot be changed here: {setting.fixed}",
        "Write the settings here as literals and run this tool again.",
        keeps=True,
    )
