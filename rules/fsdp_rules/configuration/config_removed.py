"""Rule for keys without a counterpart."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Change, Setting, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.keys import ELEMENTWISE, NOT_BROADCAST, is_on, removed
from fsdp_rules.configuration.launched import ACCELERATE, PYTHON, is_fsdp1
from fsdp_rules.frameworks.table import table
from fsdp_rules.verdict.finding import Level

SYNC, LOADING, ORIGINAL = "fsdp_sync_module_states", "fsdp_cpu_ram_efficient_loading", "fsdp_use_orig_params"


class ConfigRemoved(ConfigRule):
    """Keys without an FSDP2 form (prefetching, `fsdp_use_orig_params`, `fsdp_sync_module_states`).

    FSDP2 always prefetches in backward and always keeps the original parameters. The finding on a line says if its
    removal can change numbers. FSDP1 broadcasts rank 0's values; accelerate's FSDP2 does so only with
    `fsdp_cpu_ram_efficient_loading`. `fsdp_use_orig_params: false` gave the optimizer flat parameters.
    """

    id = "FSDP504"
    name = "config-removed-key"
    dialects = (ACCELERATE,)
    before = """
distributed_type: FSDP
fsdp_config:
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_forward_prefetch: false
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_use_orig_params: true
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
        """Each key that is left out, and the broadcast that is missed where no key says so."""
        if not is_fsdp1(block):
            return
        for key in table(ACCELERATE).with_verdict("removed"):
            setting = block.get(key.name)
            if setting is not None:
                yield self._removed(block, setting)
        loading = block.get(LOADING)
        in_python = block.form == PYTHON
        if block.get(SYNC) is None and loading is not None and not loading.is_true and not in_python:
            yield Verdict(loading, Level.REVIEW, *NOT_BROADCAST)
        if block.get(ORIGINAL) is None and in_python:
            yield Verdict(None, Level.REVIEW, *ELEMENTWISE)

    def _removed(self, block: Block, setting: Setting) -> Verdict:
        loads_once = is_on(block, LOADING) if block.get(LOADING) else block.form != PYTHON
        if setting.name == SYNC and not setting.is_true and loads_once:
            told = "removed; accelerate then also accepts fsdp_cpu_ram_efficient_loading"
            change = Change(removed=(setting.written,))
            return Verdict(setting, Level.REVIEW, f"{setting.written} is {told}", change=change)
        return removed(setting, "fsdp_", broadcasts=loads_once)
