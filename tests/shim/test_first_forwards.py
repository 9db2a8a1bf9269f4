"""Methods that call the units of a model which nothing has called itself, against real FSDP1."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from fsdp_compat import MixedPrecision, ModuleWrapPolicy
from tests.device import DEVICE, ranks
from tests.pool import Pool
from tests.shim.test_precision import wrapped

BF16, FP32 = torch.bfloat16, torch.float32


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x.dtype)
        return torch.tanh(self.inner(x.to(BF16)))


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Part(), Part()

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.encoder(x)
        return y.float()

    def score(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(x)
        return y.float().square().mean()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.score(self.encode(x))


def by_methods(rank: int, world_size: int, side: str, precision: MixedPrecision, form: str) -> list[Any]:
    """Worker: what the parts see, and the losses, of steps that call methods of the model."""
    torch.manual_seed(0)
    net = Pair()
    model = wrapped(side, net, ModuleWrapPolicy({Part, nn.Linear} if form == "deep" else {Part}), precision)
    if form == "saved":
        model.state_dict()
    if form == "loaded":
        model.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(2):
        generator = torch.Generator().manual_seed(10 * rank + step)
        loss = model.score(model.encode(torch.randn(4, 3, generator=generator).to(DEVICE)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return [[part.seen for part in model.modules() if isinstance(part, Part)], losses]


@pytest.mark.parametrize("form", ["flat", "deep", "saved", "loaded"])
@pytest.mark.parametrize(
    "precision",
    [
        MixedPrecision(param_dtype=BF16, reduce_dtype=FP32),
        MixedPrecision(param_dtype=BF16, reduce_dtype=FP32, cast_root_forward_inputs=False),
    ],
    ids=str,
)
def test_units_that_begin_first_cast_their_inputs_as_under_fsdp1(
    pool: Pool, form: str, precision: MixedPrecision
) -> None:
    theirs, ours = (pool.run(by_methods, ranks(2), side, precision, form) for side in ("fsdp1", "fsdp_compat"))
    if DEVICE.type == "cuda" and form in ("saved", "loaded"):
        # Nothing makes FSDP1's first gathers wait for the optimizer there: its second loss differs from run to run.
        theirs, ours = ([[seen, losses[:1]] for seen, losses in side] for side in (theirs, ours))
    assert ours == theirs
    seen = theirs[0][0]
    casts = precision.cast_root_forward_inputs and form in ("flat", "deep")
    assert {part[-1] for part in seen} == ({BF16} if casts else {FP32})
