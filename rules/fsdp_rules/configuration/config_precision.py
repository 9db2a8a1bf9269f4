"""Rule for what changes numbers although no key does."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.launched import ACCELERATE, is_fsdp1, low_precision
from fsdp_rules.configuration.trainer_version import TRAINER, is_xla, trainer_is_fsdp2
from fsdp_rules.verdict.finding import Level


class ConfigPrecision(ConfigRule):
    """`mixed_precision` of accelerate, `bf16` and `fp16` of the Trainer and axolotl.

    accelerate runs FSDP1 under autocast and FSDP2 without, and the Trainer uses accelerate. With `mixed_precision:
    bf16` or `fp16`, accelerate wraps the forward of an FSDP1 model in autocast, which computes norms, softmax and
    losses in fp32, and turns its outputs into fp32. For FSDP2 it does neither: the whole model computes in low
    precision, and so do its outputs. The losses are close but not equal, so such a file is kept. Write version 2
    yourself if you accept that. With `mixed_precision: no`, the losses are the same.
    """

    id = "FSDP508"
    name = "config-precision"
    dialects = (ACCELERATE, TRAINER, "axolotl")
    before = """
distributed_type: FSDP
fsdp_config:
  fsdp_state_dict_type: FULL_STATE_DICT
"""
    after = """
distributed_type: FSDP
fsdp_config:
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_version: 2
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """Once for a file that trains in low precision, or may."""
        is_trainer = block.dialect != ACCELERATE
        precision = str(block.around["precision"] or "unknown") if is_trainer else low_precision(block)
        moves = not trainer_is_fsdp2(block) and not is_xla(block) if is_trainer else is_fsdp1(block)
        if not moves or precision in ("", "no"):
            return
        if precision == "unknown":
            told = "assumes full precision: with bf16 or fp16 accelerate's FSDP2 runs without autocast"
            advice = "Use torch.autocast around forward and loss for the old numbers, and cast outputs to fp32."
            yield Verdict(None, Level.REVIEW, told, advice)
            return
        said = precision if is_trainer else f"mixed_precision: {precision}"
        told = f"{said} changes the losses: accelerate's FSDP2 runs without autocast"
        advice = "Write version 2 yourself to accept losses that are close, or train in full precision."
        yield Verdict(None, Level.MANUAL, told, advice, keeps=True)
