"""Hooks around the forward of a wrapped model, which FSDP2 calls with inputs that it has cast."""

from __future__ import annotations

import pytest

from fsdp_rules.loop.forward_hooks import ALONE, ORDER
from tests.rules.helpers import findings

SOURCE = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

def build(net, other, hook, second):
    {above}
    model = FSDP(net, {given})
    {line}
    return model
"""
BF16 = "mixed_precision=MixedPrecision(torch.bfloat16, torch.float32)"


@pytest.mark.parametrize(
    ("above", "given", "line", "level"),
    [
        ("pass", BF16, "model.register_forward_pre_hook(hook)", ["safe"]),
        ("pass", BF16, "model.register_forward_pre_hook(hook, with_kwargs=True)", ["safe"]),
        ("pass", BF16, "model.register_forward_hook(hook)", ["review"]),
        ("pass", BF16, "model.register_forward_pre_hook(hook, prepend=True)", []),
        ("pass", BF16, "model.register_forward_pre_hook(hook, prepend=False)", ["manual"]),
        ("pass", BF16, "model.register_forward_pre_hook(hook, **second)", ["manual"]),
        ("pass", BF16, "[model.register_forward_pre_hook(one) for one in hook]", ["manual"]),
        ("pass", BF16, "model.module.register_forward_pre_hook(hook)", []),
        ("pass", BF16, "other.register_forward_pre_hook(hook)", []),
        ("net.register_forward_pre_hook(hook)", BF16, "pass", []),
        ("pass", "use_orig_params=True", "model.register_forward_pre_hook(hook)", []),
    ],
)
def test_hooks_of_the_wrapper(above: str, given: str, line: str, level: list[str]) -> None:
    found = findings(SOURCE.format(above=above, given=given, line=line))
    assert [one.level.value for one in found if one.rule == "FSDP236"] == level


def test_several_hooks_would_run_in_another_order() -> None:
    line = "model.register_forward_pre_hook(hook); model.register_forward_pre_hook(second)"
    found = findings(SOURCE.format(above="pass", given=BF16, line=line))
    assert {one.level.value for one in found if one.rule == "FSDP236"} == {"manual"}


def test_a_hook_that_another_file_registers() -> None:
    main = SOURCE.format(above="from example import watch", given=BF16, line="watch(model, hook)")
    found = findings("def watch(net, hook):\n    net.register_forward_pre_hook(hook)\n", main=main)
    assert "FSDP236" in {one.rule for one in found}


def test_the_advice_for_one_hook_of_what_may_be_a_model_speaks_of_one() -> None:
    main = SOURCE.format(
        above="from example import watch", given=BF16, line="watch({'net': model if second else other}, hook)"
    )
    one = "    nets['net'].register_forward_pre_hook(hook)\n"
    for lines, advice in ((one, ALONE), (one * 2, ORDER)):
        found = findings(f"def watch(nets, hook):\n{lines}", main=main)
        assert {(each.level.value, each.advice) for each in found if each.rule == "FSDP236"} == {("manual", advice)}
