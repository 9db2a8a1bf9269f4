"""A tree that has FSDP1 and FSDP2 side by side trains with FSDP2 as before once FSDP1's branches are removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.parity.compare import differ
from tests.parity.trees import train_tree, tree
from tests.pool import Pool
from tests.rules.helpers import rewrite_tree as pipeline

WRAPS = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel as FSDP, fully_shard
from common import CPU


def fsdp_version(model):
    if isinstance(model, FSDP):
        return 1
    elif isinstance(model, FSDPModule):
        return 2
    return 0


def wrap_first(net):
    return FSDP(net, device_id=CPU)


def wrap_second(net):
    mesh = init_device_mesh("cpu", (2,))
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def clip(model):
    if fsdp_version(model) == 1:
        return model.clip_grad_norm_(0.1)
    elif fsdp_version(model) == 2:
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()
    raise TypeError
"""
TRAIN = """
import sys
import torch
from common import Net, data, finish, note, start
from wraps import clip, wrap_first, wrap_second

STRATEGY = "fsdp2"


def build(strategy):
    {build}


def main():
    rank = start()
    model = build(STRATEGY)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(10 + rank)
    for _ in range(3):
        loss = model(data()).square().mean()
        loss.backward()
        note(clip(model))
        optimizer.step()
        optimizer.zero_grad()
        note(loss)
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
CHOICES = {
    "elif": 'if strategy == "fsdp":\n        return wrap_first(Net())\n    elif strategy == "fsdp2":\n'
    "        return wrap_second(Net())\n    raise ValueError(strategy)",
    "an expression": 'return wrap_first(Net()) if strategy == "fsdp" else wrap_second(Net())',
    "a table": 'return {"fsdp": wrap_first, "fsdp2": wrap_second}[strategy](Net())',
    "an early return": 'if strategy == "fsdp2":\n        return wrap_second(Net())\n    return wrap_first(Net())',
}


@pytest.mark.parametrize("choice", CHOICES)
def test_fsdp2_trains_the_same(pool: Pool, tmp_path: Path, choice: str) -> None:
    files = tree(wraps=WRAPS, train=TRAIN.format(build=CHOICES[choice]))
    results = pipeline({path: text.encode() for path, text in files.items()}, Settings(both="retire"))
    found = [one for result in results.values() for one in getattr(result, "findings", ())]
    assert {one.level.value for one in found} == {"safe"}
    changed = {path: result.source.decode() for path, result in results.items() if isinstance(result, Changed)}
    assert "FSDP(" not in "".join(changed.values())
    before = train_tree(pool, files, tmp_path / "before")
    after = train_tree(pool, {**files, **changed}, tmp_path / "after")
    assert list(differ("values", before, after)) == []
