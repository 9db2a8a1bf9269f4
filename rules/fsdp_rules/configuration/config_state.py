"""Rule for ``fsdp_state_dict_type``."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Change, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.launched import ACCELERATE, is_fsdp2, is_read, named
from fsdp_rules.frameworks.table import table
from fsdp_rules.verdict.finding import Level

STATE = "fsdp_state_dict_type"


class ConfigState(ConfigRule):
    """`fsdp_state_dict_type`.

    Without the key, FSDP1 saves one full file and FSDP2 a folder of shards. The rewrite writes the old default, so code
    that reads the checkpoints still works. FSDP2 has no LOCAL_STATE_DICT, so accelerate raises an error.
    """

    id = "FSDP503"
    name = "config-state-dict-type"
    dialects = (ACCELERATE,)
    before = """
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: SHARD_GRAD_OP
mixed_precision: 'no'
"""
    after = """
distributed_type: FSDP
fsdp_config:
  fsdp_reshard_after_forward: false
  fsdp_version: 2
  fsdp_state_dict_type: FULL_STATE_DICT
mixed_precision: 'no'
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """The type, or its absence."""
        if not is_read(block):
            return
        setting, names = block.get(STATE), table(ACCELERATE).keys[STATE].values
        if setting is None:
            if not is_fsdp2(block):
                told = f"the default of {named(block, STATE)} is written out, because FSDP2 has a different default"
                yield Verdict(None, Level.SAFE, told, change=Change(added={STATE: "FULL_STATE_DICT"}))
            return
        name = names[int(setting.word) - 1] if setting.word in ("1", "2", "3") else setting.word
        if name == "LOCAL_STATE_DICT":
            yield Verdict(
                setting,
                Level.MANUAL,
                "LOCAL_STATE_DICT does not exist in FSDP2, and accelerate raises ValueError",
                "Use SHARDED_STATE_DICT, and convert old checkpoints with fsdp-migrate checkpoint convert.",
                keeps=not is_fsdp2(block),
            )
        elif name not in names:
            yield Verdict(
                setting,
                Level.MANUAL,
                f"{setting.written}: {setting.value} is not a state dict type of accelerate",
                f"Use {' or '.join(other for other in names if not other.startswith('LOCAL'))}.",
                keeps=not is_fsdp2(block),
            )
