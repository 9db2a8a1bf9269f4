"""Rule for ``fsdp_activation_checkpointing``."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.config_units import POLICY
from fsdp_rules.configuration.launched import ACCELERATE, is_fsdp1, named
from fsdp_rules.configuration.trainer_version import TRAINER, is_xla, trainer_is_fsdp2
from fsdp_rules.verdict.finding import Level

CHECKPOINTING = "fsdp_activation_checkpointing"


class ConfigCheckpointing(ConfigRule):
    """`fsdp_activation_checkpointing` of accelerate and the Trainer.

    accelerate keeps the random state for FSDP1 but not for FSDP2 (`preserve_rng_state=False`). A layer with dropout is
    recomputed with a different mask, so its gradients are wrong. Up to accelerate 1.14 it also checkpointed the
    children of each layer instead of the layer. Without a wrap policy it fails, because it calls None.
    """

    id = "FSDP509"
    name = "config-checkpointing"
    dialects = (ACCELERATE, TRAINER)
    before = """
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: Block
mixed_precision: 'no'
"""
    after = """
distributed_type: FSDP
fsdp_config:
  fsdp_activation_checkpointing: true
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_version: 2
mixed_precision: 'no'
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """Checkpointing that is on."""
        if block.dialect == TRAINER:
            mine = block.get(CHECKPOINTING.removeprefix("fsdp_"))
            if mine is not None and mine.is_true and not trainer_is_fsdp2(block) and not is_xla(block):
                yield Verdict(mine, Level.REVIEW, *NO_DROPOUT)
            return
        setting = block.get(CHECKPOINTING)
        if not is_fsdp1(block) or setting is None or not setting.is_true:
            return
        policy = block.get(POLICY)
        if policy is None or policy.word == "NO_WRAP":
            yield Verdict(
                setting,
                Level.MANUAL,
                "activation checkpointing without a wrap policy fails under accelerate's FSDP2: it calls None",
                f"Set {named(block, POLICY)} and the layer classes, and run this tool again.",
                keeps=True,
            )
        else:
            yield Verdict(setting, Level.REVIEW, *NO_DROPOUT)


NO_DROPOUT = (
    "assumes no dropout in checkpointed layers: accelerate's FSDP2 recomputes with a different random state",
    "Use accelerate 1.15 or newer, and the model's own gradient checkpointing if it has dropout.",
)
