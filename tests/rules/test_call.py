"""FSDP101: the call that wraps a model."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(net{})\n"


@pytest.mark.parametrize("arguments", ["", ", auto_wrap_policy=policy"])
@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("net.head = bnb.nn.Linear4bit(8, 8)\n", True),
        ("config = BitsAndBytesConfig(load_in_4bit=four_bit)\n", True),
        ("config = BitsAndBytesConfig(load_in_8bit=True)\n", False),
    ],
)
def test_weights_that_only_fsdp1_can_shard(other: str, told: bool, arguments: str) -> None:
    said = [found for found in findings(WRAP.format(arguments), other=other) if found.rule == "FSDP101"]
    assert [found.level.value for found in said if "4-bit" in found.message] == ["review"] * told
    assert len(said) == 1 + told


def test_a_library_that_may_bring_batch_norm() -> None:
    mixed = ", mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)"
    head = "import torch\nfrom torch.distributed.fsdp import MixedPrecision\n"
    told = {
        other: [
            found.level.value
            for found in findings(head + WRAP.format(mixed), other=other)
            if "BatchNorm" in found.message
        ]
        for other in ("import torchvision\n", "import transformers\n")
    }
    assert told == {"import torchvision\n": ["review"], "import transformers\n": []}
