"""``forward_prefetch=True``: the next unit is gathered before a unit computes, as under FSDP1."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.counted import train_counted
from tests.parity.trees import rewrite_tree, tree
from tests.pool import Pool

TRAIN = """
import sys
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from common import CPU, data, finish, note, start
from seen import gathers, leave, see

class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        note(gathers())
        return torch.tanh(self.linear(x))

class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 6)
        self.parts = nn.ModuleList([Part() for _ in range(4)])

    def forward(self, x):
        x = self.embed(x)
        for part in self.parts:
            x = part(x)
        return x

def main():
    rank = start()
    see()
    model = FSDP(Stack(), auto_wrap_policy=ModuleWrapPolicy({Part}), forward_prefetch=PREFETCH, device_id=CPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(10 + rank)
    for step in range(4):
        optimizer.zero_grad()
        gathers(True)
        loss = model(data()).square().mean()
        loss.backward()
        optimizer.step()
        note(loss)
    leave()
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
SEEN = """
import torch.distributed as dist

_calls = []
_NAMES = ("all_gather", "all_gather_into_tensor", "all_gather_single")
_ORIGINALS = {name: getattr(dist, name) for name in _NAMES if hasattr(dist, name)}

def see():
    for name, original in _ORIGINALS.items():
        setattr(dist, name, _seeing(original))

def leave():
    for name, original in _ORIGINALS.items():
        setattr(dist, name, original)

def _seeing(original):
    def gather(*args, **kwargs):
        _calls.append(original)
        return original(*args, **kwargs)

    return gather

def gathers(forget=False):
    if forget:
        _calls.clear()
    return len(_calls)
"""


def seen(pool: Pool, directory: Path, prefetch: bool, to: str | None) -> tuple[list[float], list[float]]:
    """How many gathers each unit of the last step's forward has seen when it computes, and the losses."""
    files = tree(train=TRAIN.replace("PREFETCH", str(prefetch)), seen=SEEN)
    if to is not None:
        files = dict(rewrite_tree(files, Settings(to=to)).files)
    recorded = train_counted(pool, files, directory).saved[0]
    return recorded[-5:-1], recorded[4::5]


@pytest.mark.parametrize("to", ["native", "shim"])
def test_units_compute_while_the_next_one_is_gathered(pool: Pool, tmp_path: Path, to: str) -> None:
    before, losses = seen(pool, tmp_path / "before", True, None)
    after, same = seen(pool, tmp_path / "after", True, to)
    assert after == before == [3, 4, 5, 5]
    assert same == losses
    assert seen(pool, tmp_path / "without", False, to)[0] == [2, 3, 4, 5]
