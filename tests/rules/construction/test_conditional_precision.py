"""FSDP104: a MixedPrecision that the call itself chooses by a condition, and one that has a name above the call."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite

HEAD = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision\n\n"
CHOSEN = "MixedPrecision(param_dtype=torch.float16) if cfg.amp else None"


def text_of(call: str, above: str = "") -> str:
    result = rewrite(f"{HEAD}def wrap(model, cfg):\n{above}    return {call}\n")
    assert isinstance(result, Changed)
    return result.source.decode()


def test_a_choice_inside_the_call_gets_a_name() -> None:
    text = text_of(f"FSDP(model, mixed_precision={CHOSEN})")
    assert (
        "mp_policy = (\n        MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16)\n" in text
    )
    assert "        else MixedPrecisionPolicy()\n    )\n    return fully_shard(model, mp_policy=mp_policy)\n" in text


def test_a_choice_of_names_keeps_them() -> None:
    above = "    half = MixedPrecision(param_dtype=torch.float16)\n"
    text = text_of("FSDP(model, mixed_precision=half if cfg.amp else None)", above)
    assert "    half = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16)\n" in text
    assert "mp_policy = half if cfg.amp else MixedPrecisionPolicy()\n" in text


def test_both_cast_the_buffers_to_what_they_compute_in() -> None:
    kinds = ("bfloat16", "float16")
    first, second = (f"MixedPrecision(param_dtype=torch.{kind}, buffer_dtype=torch.{kind})" for kind in kinds)
    text = text_of(f"FSDP(model, mixed_precision={first} if cfg.amp else {second})")
    assert "buffer.data = buffer.to(mp_policy.param_dtype)" in text and "fsdp_compat" not in text


def test_what_casts_other_inputs_in_each_arm_is_left_to_the_helper() -> None:
    other = "MixedPrecision(cast_forward_inputs=True)"
    assert "fsdp_compat.shard" in text_of(f"FSDP(model, mixed_precision={CHOSEN.replace('None', other)})")


@pytest.mark.parametrize(
    "asked", ["print(f\"{'half' if half else 'full'}\")", "if half is not None:\n        cfg.note()"]
)
def test_what_other_code_asks_for_stays_none(asked: str) -> None:
    above = f"    half = None\n    if cfg.amp:\n        half = MixedPrecision(param_dtype=torch.float16)\n    {asked}\n"
    text = text_of("FSDP(model, mixed_precision=half)", above)
    assert "    half = None\n" in text and asked in text
    assert "        half = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float16)\n" in text
    assert (
        "    mp_policy = half or MixedPrecisionPolicy()\n    return fully_shard(model, mp_policy=mp_policy)\n" in text
    )
    # What is only printed may be FSDP2's.
    plain = text_of("FSDP(model, mixed_precision=half)", above.replace(asked, 'print(f"{half}")'))
    assert "    half = MixedPrecisionPolicy()\n" in plain
    kept = text_of("FSDP(model, mixed_precision=half)", above.replace(asked, "print(half == cfg.other)"))
    assert "fsdp_compat.shard" in kept
