"""Rule for the keys of the Trainer's ``fsdp_config``."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Change, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.trainer_version import TRAINER, is_xla, trainer_is_fsdp2
from fsdp_rules.frameworks.table import table
from fsdp_rules.verdict.finding import Level


class TrainerKeys(ConfigRule):
    """Removed and unknown keys of the Trainer's `fsdp_config`.

    accelerate's names `fsdp_sharding_strategy` and `fsdp_offload_params` are often found in these files. The Trainer
    has never read them: a file that asks for offloading there gets none. They are kept and reported, since what was
    meant never ran.
    """

    id = "FSDP512"
    name = "trainer-keys"
    dialects = (TRAINER,)
    file = "fsdp_config.json"
    before = """
{
    "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    "fsdp_offload_params": true,
    "fsdp_forward_prefetch": false,
    "fsdp_version": 2
}
"""
    after = """
{
    "fsdp_transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    "fsdp_offload_params": true,
    "fsdp_version": 2
}
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """Every key that has no effect, and keys that are written twice."""
        if is_xla(block):
            return
        known = table(TRAINER).keys
        for setting in block.settings.values():
            key = known.get(setting.name)
            if key is None:
                near = difflib.get_close_matches(setting.name, list(known), n=1, cutoff=0.8)
                advice = f"It may be {near[0]} that was meant." if near else "Remove it, or use a key that is read."
                yield Verdict(setting, Level.MANUAL, f"the Trainer does not read the key {setting.written}", advice)
            elif key.verdict == "dead":
                reason = f"{setting.written} is {key.v2 if trainer_is_fsdp2(block) else key.v1}"
                yield Verdict(setting, Level.MANUAL, reason, f"Under FSDP2: {key.v2}.")
            elif key.verdict == "removed":
                yield self._removed(setting.written, setting.name, block)
        for other in block.others:
            told = f"{other.written} is written twice, and the last one counts"
            yield Verdict(other, Level.MANUAL, told, "Remove one of them and run this tool again.", keeps=True)

    def _removed(self, written: str, name: str, block: Block) -> Verdict:
        setting = block.settings[name]
        change = Change(removed=(written,))
        loading = block.get("cpu_ram_efficient_loading")
        if name == "use_orig_params" and not setting.is_true and not trainer_is_fsdp2(block):
            told = "assumes an elementwise optimizer (Adam, SGD): FSDP2 has no flat parameters for it"
            return Verdict(setting, Level.REVIEW, told, "Compare the losses of a few steps.", change)
        broadcasts = name == "sync_module_states" and setting.is_true
        if broadcasts and not (loading and loading.is_true) and not trainer_is_fsdp2(block):
            told = "assumes all ranks start from the same weights: FSDP2 does not broadcast those of rank 0"
            return Verdict(setting, Level.REVIEW, told, "Set cpu_ram_efficient_loading: true to broadcast.", change)
        return Verdict(setting, Level.SAFE, f"{written} is removed: FSDP2 has no such setting", change=change)
