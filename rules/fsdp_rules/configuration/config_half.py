"""Rule for files that ask for FSDP2 in FSDP1's terms."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Change, Setting, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.config_strategy import RESHARD, RESHARDS, STRATEGY, strategy_name
from fsdp_rules.configuration.launched import ACCELERATE, PYTHON, is_fsdp2, is_read, said
from fsdp_rules.frameworks.table import table
from fsdp_rules.verdict.finding import Level


class ConfigHalf(ConfigRule):
    """`fsdp_version: 2` with keys of FSDP1.

    FSDP2 silently ignores `fsdp_sharding_strategy`, so SHARD_GRAD_OP, HYBRID_SHARD and NO_SHARD train with full
    sharding. It rejects the name of a strategy in `fsdp_reshard_after_forward`. Keys without effect are removed. If the
    old key asks for something other than what runs, you must decide which of the two you want.
    """

    id = "FSDP506"
    name = "config-half-migrated"
    dialects = (ACCELERATE,)
    before = """
distributed_type: FSDP
fsdp_config:
  fsdp_reshard_after_forward: FULL_SHARD
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_use_orig_params: true
  fsdp_version: 2
mixed_precision: 'no'
"""
    after = """
distributed_type: FSDP
fsdp_config:
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_version: 2
mixed_precision: 'no'
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """FSDP1's keys and values in a file for FSDP2."""
        if not is_read(block) or not is_fsdp2(block):
            return
        reshard, strategy = block.get(RESHARD), block.get(STRATEGY)
        if reshard and strategy_name(reshard.word) and reshard.word not in ("1", "TRUE"):
            name = strategy_name(reshard.word) or ""
            now = said(block, reshard.written, reshard.value)
            told = f"{now} raises ValueError under FSDP2, which requires a boolean"
            if name in ("FULL_SHARD", "SHARD_GRAD_OP"):
                yield Verdict(reshard, Level.SAFE, told, change=Change({reshard.written: RESHARDS[name]}))
            else:
                advice = "Write true or false, and a parallelism_config for replication."
                yield Verdict(reshard, Level.MANUAL, told, advice, keeps=True)
        if strategy:
            name = strategy_name(strategy.word) or str(strategy.value)
            change = Change(removed=(strategy.written,))
            if reshard or name == "FULL_SHARD":
                told = f"{strategy.written} is removed: FSDP2 does not read it"
                yield Verdict(strategy, Level.SAFE, told, change=change)
            else:
                yield self._ignored(block, strategy)
        for key in table(ACCELERATE).with_verdict("removed"):
            setting = block.get(key.name)
            # The launcher looks at this one before it looks at the version.
            if setting and (setting.name != "fsdp_sync_module_states" or setting.is_true):
                told = f"{setting.written} is removed: FSDP2 does not read it"
                yield Verdict(setting, Level.SAFE, told, change=Change(removed=(setting.written,)))

    def _ignored(self, block: Block, strategy: Setting) -> Verdict:
        written = said(block, strategy.written, strategy.value)
        if block.form == PYTHON:
            told = f"{written} makes accelerate raise ValueError under FSDP2: reshard_after_forward is missing"
            return Verdict(
                strategy, Level.MANUAL, told, "Write reshard_after_forward (False for SHARD_GRAD_OP) instead."
            )
        return Verdict(
            strategy,
            Level.MANUAL,
            f"FSDP2 silently ignores {written} and trains with full sharding",
            "Write fsdp_reshard_after_forward (false for SHARD_GRAD_OP), or remove the key to keep the current "
            "behaviour.",
        )
