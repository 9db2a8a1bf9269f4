"""Rule for keys that nothing reads."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Change, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.keys import unknown, written_twice
from fsdp_rules.configuration.launched import ACCELERATE, is_fsdp1, is_read
from fsdp_rules.frameworks.table import table
from fsdp_rules.verdict.finding import Level


class ConfigUnknown(ConfigRule):
    """Unknown and duplicate keys of `fsdp_config`.

    The launcher accepts any key, passes on the ones that it supports, and silently drops the rest. The rewrite removes
    keys that have no effect in either version. It keeps any other key, because only you know its purpose.
    """

    id = "FSDP505"
    name = "config-unknown-key"
    dialects = (ACCELERATE,)
    before = """
distributed_type: FSDP
fsdp_config:
  fsdp_backward_prefetch_policy: BACKWARD_PRE
  fsdp_limit_all_gathers: true
  fsdp_state_dict_type: FULL_STATE_DICT
mixed_precision: 'no'
"""
    after = """
distributed_type: FSDP
fsdp_config:
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_version: 2
mixed_precision: 'no'
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """Dead keys, keys that no table has, and the losers of two equal keys."""
        if not is_read(block):
            return
        known = table(block.dialect).keys
        for setting in block.settings.values():
            key = known.get(setting.name)
            if key is None:
                yield unknown(setting, ACCELERATE, known)
            elif key.verdict == "dead":
                change = Change(removed=(setting.written,)) if is_fsdp1(block) else Change()
                level = Level.SAFE if is_fsdp1(block) else Level.INFO
                yield Verdict(setting, level, f"{setting.written} is never read by accelerate: {key.v1}", change=change)
        yield from written_twice(block.others, known)
