"""Rule for the keys of the Trainer's ``fsdp_config``."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.keys import is_on, removed, unknown, written_twice
from fsdp_rules.configuration.trainer_version import TRAINER, is_xla, trainer_is_fsdp2
from fsdp_rules.frameworks.table import table
from fsdp_rules.verdict.finding import Level


class TrainerKeys(ConfigRule):
    """Removed and unknown keys of the Trainer's `fsdp_config`.

    accelerate's names `fsdp_sharding_strategy` and `fsdp_offload_params` are often found in these files. The Trainer
    has never read them: a file that asks for offloading there gets none. They are kept and reported, because they never
    had an effect.
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
                yield unknown(setting, "the Trainer", known)
            elif key.verdict == "dead":
                reason = f"{setting.written} is {key.v2 if trainer_is_fsdp2(block) else key.v1}"
                yield Verdict(setting, Level.MANUAL, reason, f"Under FSDP2: {key.v2}.")
            elif key.verdict == "removed":
                loads_once = is_on(block, "cpu_ram_efficient_loading")
                yield removed(setting, "", broadcasts=loads_once, moves=not trainer_is_fsdp2(block))
        yield from written_twice(block.others, known)
