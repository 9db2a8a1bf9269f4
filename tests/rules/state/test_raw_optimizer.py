"""FSDP311: optimizers that torch.distributed.checkpoint gets by themselves, and whose state it takes."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

HEAD = """import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(build())
optimizer = torch.optim.AdamW(model.parameters())
"""


def levels(source: str) -> list[str]:
    return [found.level.value for found in findings(HEAD + source + "\n") if found.rule == "FSDP311"]


@pytest.mark.parametrize(
    "source",
    [
        "dcp.save({'model': model, 'optimizer': optimizer}, checkpoint_id=path)",
        "state = {'model': model, 'optimizer': optimizer}\ndcp.load(state, checkpoint_id=path)",
        "dcp.async_save({'optimizer': trainer.optim}, checkpoint_id=path)",
    ],
)
def test_an_optimizer_in_what_is_saved(source: str) -> None:
    assert levels(source) == ["info"]


@pytest.mark.parametrize(
    "source",
    [
        "dcp.save({'model': model}, checkpoint_id=path)",
        "dcp.save({'step': step, 'options': optimizer_options}, checkpoint_id=path)",
        "save({'optimizer': optimizer}, path)",
        "dcp.save(checkpoint_id=path)",
    ],
)
def test_other_states(source: str) -> None:
    assert levels(source) == []
