"""Parts that a random number skips: trained before and after, and equal."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.compare import differ
from tests.parity.trees import TRAINED, rewrite_by_command, train_tree, tree
from tests.pool import Pool

PROGRAM = """
import random
import sys
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from common import CPU, data, finish, note, start


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(torch.tanh(self.linear(x)))


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.rate = Inner(), 0.5
        self.more = nn.ModuleList([Inner() for _ in range(2)])
        self.drops = random.Random(3)
        self.end = nn.Linear(6, 6)

    def forward(self, x):
        {body}


def main():
    rank = start()
    model = FSDP(Dropped(), auto_wrap_policy=ModuleWrapPolicy({{Inner}}), device_id=CPU, use_orig_params=True)
"""
DROPS = {
    "around": "if self.drops.random() > self.rate:\n            x = self.inner(x)\n        return self.end(x)",
    "above": (
        "x = self.end(x)\n        if self.drops.random() < self.rate:\n            return x\n"
        "        return self.inner(x)"
    ),
    "a name": (
        "drawn = self.drops.random()\n        if drawn > self.rate:\n            x = self.inner(x)\n"
        "        return self.end(x)"
    ),
    "a loop": (
        "for one in self.more:\n            if self.drops.random() < self.rate:\n                continue\n"
        "            x = one(x)\n        return self.end(x)"
    ),
}
KEPT = {
    "no test": "return self.end(self.inner(x))",
    "a test of the end": (
        "x = self.inner(x)\n        if self.drops.random() < self.rate:\n            x = x * 2\n"
        "        return self.end(x)"
    ),
    "a setting": "if self.rate:\n            x = self.inner(x)\n        return self.end(x)",
}


def skipped(body: str, torch: tuple[int, int]) -> tuple[dict[str, str], list[str], dict[str, str]]:
    files = tree(train=PROGRAM.format(body=body) + TRAINED.replace("lr=0.05", "lr=0.05, weight_decay=0.3"))
    done = rewrite_by_command(files, Settings(torch=torch))
    return files, [one.message for one in done.findings if "is random" in one.message], {**done.files}


@pytest.mark.parametrize("torch", [(2, 6), (2, 13)])
@pytest.mark.parametrize("body", DROPS.values(), ids=DROPS.keys())
def test_a_skipped_part_trains_the_same(body: str, torch: tuple[int, int], pool: Pool, tmp_path: Path) -> None:
    files, said, after = skipped(body, torch)
    assert len(said) == 1
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert list(differ("losses", before, train_tree(pool, after, tmp_path / "after"))) == []


@pytest.mark.parametrize("body", KEPT.values(), ids=KEPT.keys())
def test_a_part_that_no_random_number_skips_is_sharded_by_torch(body: str) -> None:
    assert skipped(body, (2, 13))[1] == []
