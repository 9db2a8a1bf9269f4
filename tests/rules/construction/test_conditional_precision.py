"""FSDP104: a MixedPrecision that the call itself chooses by a condition, and one that has a name above the call."""

from __future__ import annotations

from tests.rules.helpers import findings

HEAD = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision\n\n"
CHOSEN = "MixedPrecision(param_dtype=torch.float16) if cfg.amp else None"


def test_the_advice_of_a_choice_inside_the_call_makes_it_native() -> None:
    inside = f"{HEAD}def wrap(model, cfg):\n    return FSDP(model, mixed_precision={CHOSEN})\n"
    (said,) = (one for one in findings(inside) if one.rule == "FSDP101")
    assert "the MixedPrecision is created inside a larger expression" in said.message
    assert "assign the MixedPrecision to a new variable above the call" in (said.advice or "")
    named = f"{HEAD}def wrap(model, cfg):\n    mp = {CHOSEN}\n    return FSDP(model, mixed_precision=mp)\n"
    assert not any("fsdp_compat" in one.message for one in findings(named) if one.rule == "FSDP101")
