"""Rule for the policies that choose units."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.launched import ACCELERATE, is_fsdp1, named, said
from fsdp_rules.frameworks.table import table
from fsdp_rules.verdict.finding import Level

POLICY, CLASSES = "fsdp_auto_wrap_policy", "fsdp_transformer_layer_cls_to_wrap"

SIZE_FAILS = "SIZE_BASED_WRAP fails under accelerate's FSDP2 if a ModuleList has more than min_num_params"


class ConfigUnits(ConfigRule):
    """`fsdp_auto_wrap_policy` and the keys that belong to it.

    The names are the same for both versions. SIZE_BASED_WRAP is kept on FSDP1: accelerate's FSDP2 counts all parameters
    of a module, lists of layers included, and `fully_shard` refuses a ModuleList with ValueError. Without
    `fsdp_transformer_layer_cls_to_wrap` the model's `_no_split_modules` decide, which works under FSDP2 since
    accelerate 1.14. With older versions, only the root was sharded.
    """

    id = "FSDP507"
    name = "config-units"
    dialects = (ACCELERATE,)
    before = """
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_state_dict_type: FULL_STATE_DICT
mixed_precision: 'no'
"""
    after = """
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_version: 2
mixed_precision: 'no'
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """Policies whose units change, and names that are none."""
        setting = block.get(POLICY)
        if not is_fsdp1(block) or setting is None:
            return
        if setting.word not in table(ACCELERATE).keys[POLICY].values:
            yield Verdict(
                setting,
                Level.MANUAL,
                f"{said(block, setting.written, setting.value)} is not a wrap policy of accelerate",
                "Use TRANSFORMER_BASED_WRAP, SIZE_BASED_WRAP or NO_WRAP and run this tool again.",
                keeps=True,
            )
        elif setting.word == "SIZE_BASED_WRAP":
            advice = f"Use TRANSFORMER_BASED_WRAP with {named(block, CLASSES)} and run this tool again."
            yield Verdict(setting, Level.MANUAL, SIZE_FAILS, advice, keeps=True)
        elif setting.word == "TRANSFORMER_BASED_WRAP" and not block.value(CLASSES):
            yield Verdict(
                setting,
                Level.REVIEW,
                "assumes accelerate 1.14 or newer: in older versions, _no_split_modules of the model gives FSDP2 "
                "no units",
                f"Write the layer classes into {named(block, CLASSES)}.",
            )
