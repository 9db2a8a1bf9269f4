"""Rule for the ``fsdp_config`` of Composer and llm-foundry."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Change, New, Setting, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.config_strategy import RESHARDS, strategy_name
from fsdp_rules.configuration.keys import removed, unknown, written_twice
from fsdp_rules.configuration.launched import PYTHON, said
from fsdp_rules.frameworks.table import table
from fsdp_rules.verdict.finding import Level

COMPOSER = "composer"
_NEW = "reshard_after_forward"
_SWITCH = "assumes Composer 0.32 or newer with FSDP_VERSION=2 in its environment (otherwise, FSDP1 runs)"
_AGAIN = "Keep this run on FSDP1, or remove the key and run this tool again."


class ComposerConfig(ConfigRule):
    """`fsdp_config` of Composer and llm-foundry.

    Composer runs FSDP1 unless the environment sets `FSDP_VERSION=2`. Its FSDP2 reads the keys that it supports from the
    same mapping and drops the others with a warning: the strategy, offloading, and the sizes of hybrid sharding. The
    rewrite turns the strategy into `reshard_after_forward`, writes `state_dict_type: full` because FSDP2 saves sharded
    states by default, and removes keys without effect. A file that needs something that FSDP2 drops is kept. The result
    runs under both versions with the same numbers, so you can change the file before the environment.
    """

    id = "FSDP532"
    name = "composer-config"
    dialects = (COMPOSER,)
    file = "pretrain.yaml"
    before = """
fsdp_config:
  sharding_strategy: SHARD_GRAD_OP
  mixed_precision: PURE
  activation_checkpointing: false
  limit_all_gathers: true
"""
    after = """
fsdp_config:
  reshard_after_forward: false
  mixed_precision: PURE
  activation_checkpointing: false
  state_dict_type: full
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """The strategy, the form of states, keys that go, and what FSDP2 drops."""
        known = table(COMPOSER).keys
        yield from written_twice(block.others, known)
        for setting in block.settings.values():
            row = known.get(setting.name)
            if row is None:
                yield unknown(setting, "Composer", known)
            elif setting.name == "sharding_strategy":
                yield self._strategy(block, setting)
            elif row.verdict == "removed":
                yield self._removed(setting)
            elif row.verdict == "depends":
                yield self._dropped(block, setting, row.default)
        yield from self._states(block)

    def _strategy(self, block: Block, setting: Setting) -> Verdict:
        name = strategy_name(setting.word)
        if name not in ("FULL_SHARD", "SHARD_GRAD_OP"):
            asked = said(block, setting.written, setting.value)
            told = f"Composer's FSDP2 drops {asked} and shards over all ranks"
            return Verdict(setting, Level.MANUAL, told, _AGAIN, keeps=True)
        value = RESHARDS[name]
        told = f"{setting.written}: {setting.value} becomes {_NEW}: {str(value).lower()}"
        if block.get(_NEW):
            change = Change({_NEW: value}, removed=(setting.written,))
        else:
            change = Change({setting.written: value}, {setting.written: _NEW})
        return Verdict(setting, Level.SAFE, told, change=change)

    def _removed(self, setting: Setting) -> Verdict:
        if setting.name == "sync_module_states" and str(setting.value).lower() not in ("false", "none", ""):
            told = "assumes all ranks start from the same weights: Composer broadcasts only on mixed devices"
            change = Change(removed=(setting.written,))
            return Verdict(setting, Level.REVIEW, told, "Set the seed before the model is built.", change)
        return removed(setting, "", broadcasts=True)

    def _dropped(self, block: Block, setting: Setting, default: str) -> Verdict:
        # One replica is what FSDP2 has without the key.
        if setting.value is None or str(setting.value).lower() in (default.lower(), "none", "") or _is_one(setting):
            told = f"{setting.written} is removed, because FSDP2 does this by default"
            return Verdict(setting, Level.SAFE, told, change=Change(removed=(setting.written,)))
        told = f"Composer's FSDP2 drops {said(block, setting.written, setting.value)} with a warning"
        return Verdict(setting, Level.MANUAL, told, _AGAIN, keeps=True)

    def _states(self, block: Block) -> Iterable[Verdict]:
        """The form of saved states, and the mark of a file that was moved: the new key."""
        kind = block.get("state_dict_type")
        if kind is not None and kind.word == "LOCAL":
            yield Verdict(kind, Level.MANUAL, "state_dict_type: local does not exist in FSDP2", _AGAIN, keeps=True)
        if block.get(_NEW) is not None:
            if kind is None:
                told = "without state_dict_type FSDP1 saves full states and FSDP2 saves sharded ones"
                yield Verdict(None, Level.INFO, told, "Write state_dict_type out.")
            return
        added: dict[str, New] = {} if block.get("sharding_strategy") else {_NEW: True}
        if kind is None:
            added["state_dict_type"] = "full"
        if block.form != PYTHON:
            yield Verdict(None, Level.REVIEW, _SWITCH, "Set FSDP_VERSION=2 where this file is run.")
        if added:
            told = f"FSDP1's defaults are written out: {', '.join(added)}"
            yield Verdict(None, Level.SAFE, told, change=Change(added=added))


def _is_one(setting: Setting) -> bool:
    return setting.name == "data_parallel_replicate_degree" and setting.word == "1"
