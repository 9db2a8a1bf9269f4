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
    assert levels(source) == ["review"]


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


DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
HELD = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Sharded:
    def setup(self):
        self.net = FSDP(self.net)
"""


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (f"{DDP}class Plain:\n    def setup(self):\n        self.net = DDP(self.net)\n", []),
        ("class Plain:\n    def setup(self):\n        self.net.train()\n", []),
        ("from sharded import Sharded\n\nclass Plain(Sharded):\n    def run(self):\n        pass\n", ["review"]),
    ],
)
def test_the_optimizer_of_a_file_that_no_sharded_model_reaches(source: str, said: list[str]) -> None:
    source += "    def save(self):\n        return self.net.name, self.optimizer.state_dict()\n"
    assert [one.level.value for one in findings(source, sharded=HELD) if one.rule == "FSDP311"] == said


def test_an_optimizer_under_a_test_for_ddp() -> None:
    body = "if isinstance(model, (DDP, Single)):\n    state = optimizer.state_dict()\n"
    assert levels(body) == []
    assert levels(body.replace("DDP", "Double")) == ["review"]


LOADS = "saved = torch.load(f'optimizer_{rank}.pt')\n"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (f"{LOADS}optimizer.load_state_dict(saved)", ["manual"]),
        (f"{LOADS}optimizer.load_state_dict(saved['optimizer'])", ["manual"]),
        ("def resume(optim, path):\n    optim.load_state_dict(torch.load(path))\nresume(optimizer, path)", ["manual"]),
        (f"{LOADS}optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, saved))", []),
        ("kept = optimizer.state_dict()\noptimizer.load_state_dict(kept)", ["review"]),
        (f"{LOADS}scheduler.load_state_dict(saved)", []),
        (f"{LOADS}plain = torch.optim.SGD(torch.nn.Linear(3, 3).parameters())\nplain.load_state_dict(saved)", []),
    ],
)
def test_a_part_of_a_state_that_is_read_from_a_file(source: str, said: list[str]) -> None:
    assert levels(source) == said


def test_a_part_of_a_state_of_what_may_be_the_model() -> None:
    source = f"{LOADS}for one in (model, optimizer):\n    one.load_state_dict(saved)"
    assert levels(source) == ["review"]
