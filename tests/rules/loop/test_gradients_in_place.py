"""FSDP222: gradients that a program changes in place, element by element, which is alike on every shard.

tests/parity/test_gradients_in_place.py trains those that have no finding.
"""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings
from tests.rules.loop.test_flat_shards import places, spoken

ALIKE = (
    "p.grad.data.mul_(2)",
    "p.grad.detach().mul_(0.5)",
    "p.grad.data.div_(steps)",
    "p.grad.clamp_(-1, 1)",
    "p.grad.data.clamp_(min=-1.0, max=1.0)",
    "p.grad.nan_to_num_()",
    "p.grad.data.zero_()",
    "p.grad.data.add_(p.data, alpha=0.1)",
    "p.grad *= 2",
    "p.grad.data /= 4",
)
#: What takes a number of a gradient, or meets another tensor, which a DTensor is not for.
OTHER = (
    "p.grad.data.mul_(1 / p.grad.norm())",
    "p.grad.data.mul_(torch.rand(p.shape))",
    "p.grad.data.mul_(masks[n])",
    "p.grad.mul_(masks[n])",
    "p.grad.mul_(mask)",
    "p.grad.data.mul_(sparse.grad_mask.to(p.device))",
    "p.grad.data.copy_(x)",
    "p.grad += torch.randn(p.shape)",
    "x.append(p.grad.data)",
)


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize("use", ALIKE)
def test_what_is_alike_on_every_shard_has_no_finding(use: str, to: str) -> None:
    loop = f"for n, p in M.named_parameters():\n    if p.grad is not None:\n        {use}"
    assert {name for name, files in places(loop, "FSDP(net)").items() if "FSDP222" in spoken(files, to)} == set()


@pytest.mark.parametrize("use", OTHER)
def test_what_takes_numbers_has_one_in_every_place(use: str) -> None:
    loop = f"for n, p in M.named_parameters():\n    {use}"
    silent = {name for name, files in places(loop, "FSDP(net)").items() if "FSDP222" not in spoken(files, "native")}
    assert silent == set()


def test_a_mask_that_a_loop_gives_with_each_parameter_is_another_tensor() -> None:
    loop = "for p, mask in zip(model.parameters(), masks):\n        p.grad.mul_(mask)"
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        f"def run(model, masks):\n    model = FSDP(model)\n    {loop}\n"
    )
    assert "FSDP222" in {one.rule for one in findings(source, Settings())}
