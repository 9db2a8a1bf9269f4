"""torch.autocast around a sharded model: its casts of weights are made anew, natively and under the shim."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.compare import differ
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

TRAIN = """
import contextlib
import functools
import sys
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from common import CPU, Block, Net, data, finish, note, start
from engine import run


def main():
    rank = start()
    model = FSDP(
        Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=CPU, use_orig_params=True, sync_module_states=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(10 + rank)
    run(model, optimizer, data, note)
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
#: What trains, in a file that wraps nothing.
ENGINES = {
    "a region around several steps": """
import torch

def run(model, optimizer, data, note):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(4):
            loss = model(data()).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            note(loss)
""",
    "two forwards before one backward": """
import torch

def run(model, optimizer, data, note):
    region = torch.amp.autocast(device_type="cpu", dtype=torch.bfloat16)
    for _ in range(6):
        with region:
            chosen, rejected = model(data()), model(data())
            loss = torch.nn.functional.softplus(rejected - chosen).float().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        note(loss)
""",
    "a decorator, and a partial": """
import functools
import torch

half = functools.partial(torch.autocast, "cpu", torch.bfloat16)

@torch.autocast("cpu", dtype=torch.bfloat16)
def losses(model, batches):
    return sum(model(batch).float().square().mean() for batch in batches)

def run(model, optimizer, data, note):
    for _ in range(6):
        with half():
            loss = losses(model, [data(), data()]) + model(data()).float().abs().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        note(loss)
""",
}


@pytest.mark.parametrize("kind", ["native", "shim"])
@pytest.mark.parametrize("name", ENGINES)
def test_weights_are_cast_for_each_use(pool: Pool, tmp_path: Path, name: str, kind: str) -> None:
    files = tree(train=TRAIN, engine=ENGINES[name])
    done = rewrite_tree(files, Settings(to=kind, torch=(2, 13)))
    assert [found for found in done.findings if found.level.value == "manual"] == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert list(differ("losses", before, after)) == []
    if kind == "native":
        left = train_tree(pool, {**done.files, "engine.py": files["engine.py"]}, tmp_path / "left")
        assert list(differ("losses", before, left)), "the cache makes no difference here: the test shows nothing"
