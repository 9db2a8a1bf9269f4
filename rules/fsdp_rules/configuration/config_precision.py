"""Rule for what changes numbers although no key does."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.launched import ACCELERATE, is_fsdp1, low_precision
from fsdp_rules.verdict.finding import Level


class ConfigPrecision(ConfigRule):
    """`mixed_precision` of accelerate.

    accelerate runs FSDP1 under autocast and FSDP2 without. With `mixed_precision: bf16` or `fp16`, accelerate wraps the
    forward of an FSDP1 model in autocast, which computes norms, softmax and losses in fp32, and turns its outputs into
    fp32. For FSDP2 it does neither: everything inside the model is computed in the low precision, and the outputs are
    of it. The losses are close and not equal. With `mixed_precision: no` they are the same.
    """

    id = "FSDP508"
    name = "config-precision"
    dialects = (ACCELERATE,)
    before = """
distributed_type: FSDP
fsdp_config:
  fsdp_state_dict_type: FULL_STATE_DICT
mixed_precision: bf16
"""
    after = """
distributed_type: FSDP
fsdp_config:
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_version: 2
mixed_precision: bf16
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """Once for a file that trains in low precision, or may."""
        precision = low_precision(block)
        if not is_fsdp1(block) or not precision:
            return
        if precision == "unknown":
            told = "assumes full precision: with bf16 or fp16 accelerate's FSDP2 runs without autocast"
        else:
            told = f"mixed_precision: {precision} changes the losses: accelerate's FSDP2 runs without autocast"
        yield Verdict(
            None,
            Level.REVIEW,
            told,
            "Use torch.autocast around forward and loss for the old numbers, and cast outputs to fp32.",
        )
