"""Loads that one run makes into a sharded model on two ranks, and another into a plain one without a process group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity.cpu import fsdp1_on_cpu
from tests.parity.trees import rewrite_tree, tree
from tests.pool import Pool

HEAD = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from common import CPU, RECORD, Net, data, finish, note, start
"""
#: ``train.py`` of each shape gives ``build(sharded, path)``, which returns the loaded model.
MAIN = """

def main():
    saved, folder, sharded = sys.argv[1], sys.argv[2], sys.argv[3] == "sharded"
    if sharded:
        start()
    model = build(sharded, folder + "/start.pt")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    for step in range(3):
        loss = model(data()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        note(loss)
    if sharded:
        finish(saved)
    else:
        torch.save([RECORD], saved)


if __name__ == "__main__":
    main()
"""
WRAP = "FSDP(model, device_id=CPU, use_orig_params=True)"
HELPER = "import torch\n\ndef restore(model, path):\n    model.load_state_dict(torch.load(path))\n"
SHAPES = {
    "before the wrap in __init__": tree(
        train=f"""{HEAD}
class Trainer:
    def __init__(self, sharded, path):
        self.model = Net()
        self.model.load_state_dict(torch.load(path))
        if sharded:
            model = self.model
            self.model = {WRAP}

def build(sharded, path):
    return Trainer(sharded, path).model
{MAIN}"""
    ),
    "a method of a class that shards sometimes": tree(
        train=f"""{HEAD}
class Trainer:
    def __init__(self, model, sharded):
        self.model = model
        if sharded:
            self.model = {WRAP}

    def load(self, path):
        self.model.load_state_dict(torch.load(path))

def build(sharded, path):
    trainer = Trainer(Net(), sharded)
    trainer.load(path)
    return trainer.model
{MAIN}"""
    ),
    "a branch": tree(
        train=f"""{HEAD}
def build(is_distributed, path):
    model = Net()
    if is_distributed:
        model = {WRAP}
    if not is_distributed:
        model.load_state_dict(torch.load(path))
    else:
        model.load_state_dict(torch.load(path))
    return model
{MAIN}"""
    ),
    "the other arm": tree(
        train=f"""{HEAD}
def build(sharded, path):
    model = Net()
    model = {WRAP} if sharded else model
    state = torch.load(path)
    model.load_state_dict(state)
    print(len(state))
    return model
{MAIN}"""
    ),
    "a helper in another file": tree(
        train=f"""{HEAD}from helper import restore

def build(sharded, path):
    model = Net()
    if sharded:
        model = {WRAP}
    restore(model, path)
    return model
{MAIN}""",
        helper=HELPER,
    ),
    "a tool of one process beside a trainer": tree(
        train=f"""{HEAD}from helper import restore
from tool import evaluate

def build(sharded, path):
    if not sharded:
        return evaluate(path)
    model = Net()
    model = {WRAP}
    restore(model, path)
    return model
{MAIN}""",
        helper=HELPER,
        tool="""
import torch
from common import Net
from helper import restore

def evaluate(path):
    model = Net()
    restore(model, path)
    again = Net()
    again.load_state_dict(model.state_dict())
    return again
""",
    ),
}


@pytest.mark.parametrize("how", ["plain", "sharded"])
@pytest.mark.parametrize("files", SHAPES.values(), ids=SHAPES.keys())
def test_a_load_is_right_with_and_without_a_process_group(
    pool: Pool, tmp_path: Path, files: dict[str, str], how: str
) -> None:
    after = rewrite_tree(files)
    assert after.manual() == []
    torch.manual_seed(5)
    torch.save(_state(files), tmp_path / "start.pt")
    before = _losses(pool, tmp_path, "before", files, how)
    rewritten = _losses(pool, tmp_path, "after", dict(after.files), how)
    assert before == rewritten
    assert len(before) == (1 if how == "plain" else 2)


def _state(files: dict[str, str]) -> dict[str, torch.Tensor]:
    names: dict[str, Any] = {}
    exec(compile(files["common.py"], "common.py", "exec"), names)
    state: dict[str, torch.Tensor] = names["Net"]().state_dict()
    return state


def _losses(pool: Pool, folder: Path, name: str, files: dict[str, str], how: str) -> list[list[float]]:
    directory = folder / name
    directory.mkdir()
    for path, text in files.items():
        (directory / path).write_text(text)
    saved = directory / "result.pt"
    ranks = 1 if how == "plain" else 2
    prelude = fsdp1_on_cpu if name == "before" and how == "sharded" else None
    pool.run_script(directory / "train.py", ranks, [str(saved), str(folder), how], prelude=prelude)
    losses: list[list[float]] = torch.load(saved)
    return losses
