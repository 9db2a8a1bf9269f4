"""FSDP212: gradient hooks on parameters."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_noop, findings

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(model)\n"


def levels(source: str) -> list[str]:
    return [found.level.value for found in findings(source) if found.rule == "FSDP212"]


def test_models_that_are_never_wrapped_are_left_alone() -> None:
    check_noop("for p in model.parameters():\n    p.register_hook(print)\n")


def test_hooks_on_other_tensors_are_left_alone() -> None:
    assert levels(WRAP + "output = model(batch)\noutput.register_hook(print)\n") == []


@pytest.mark.parametrize("method", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize(
    "loop",
    [
        "for p in model.parameters():",
        "for name, p in model.named_parameters():",
        "for i, (name, p) in enumerate(model.named_parameters()):",
        "for p in filter(trainable, list(model.module.parameters())):",
    ],
)
def test_hooks_in_a_loop_over_the_parameters(loop: str, method: str) -> None:
    assert levels(WRAP + f"{loop}\n    p.{method}(print)\n") == ["manual"]
