"""Models that are frozen whole while a backward runs through them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Level
from tests.parity.trees import rewrite_by_command, train_tree, tree
from tests.pool import Pool

PROGRAM = """
import sys
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from common import CPU, Block, Net, data, finish, note, start

def toggle(model, flag):
    for p in model.parameters():
        p.requires_grad_(flag)

def toggle_all(models, flag=False):
    for model in models:
        for p in model.parameters():
            p.requires_grad = flag

class Frozen:
    def __init__(self, models):
        self.models = list(models)

    def __enter__(self):
        for model in self.models:
            for p in model.parameters():
                p.requires_grad = False

    def __exit__(self, *exc):
        pass

def main():
    rank = start()
    maker = FSDP(nn.Linear(6, 6), device_id=CPU, use_orig_params=True)
    judge = FSDP(
        Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=CPU, use_orig_params=ORIGINALS,
        sharding_strategy=ShardingStrategy.STRATEGY
    )
    torch.manual_seed(10 + rank)
    first = torch.optim.SGD(maker.parameters(), lr=0.05)
    second = torch.optim.SGD(judge.parameters(), lr=0.05)
    for _ in range(4):
        toggle(judge, True)
        second.zero_grad()
        loss = judge(data()).square().mean()
        loss.backward()
        second.step()
        AFTER
        FREEZE
        first.zero_grad()
        other = -judge(maker(data())).mean()
        other.backward()
        first.step()
        note(loss)
        note(other)
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
FREEZES = {
    "a function": "toggle(judge, False)",
    "the method of the model": "judge.requires_grad_(False)",
    "a function over several": "toggle_all([judge])",
    "a context manager": "Frozen([judge]).__enter__()",
    "a loop": "for p in judge.parameters():\n            p.requires_grad = False",
}
#: Each takes away one of what FSDP1 needs to keep the gradients.
EQUAL = {
    "cleared after the step": {"AFTER": "second.zero_grad()"},
    "FULL_SHARD": {"STRATEGY": "FULL_SHARD"},
    "NO_SHARD": {"STRATEGY": "NO_SHARD"},
    "NO_SHARD with flat parameters": {"STRATEGY": "NO_SHARD", "ORIGINALS": "False"},
    "a part of a unit": {"FREEZE": "toggle(judge.embed, False)", "toggle(judge, True)": "toggle(judge.embed, True)"},
}


def program(freeze: str, changes: dict[str, str]) -> dict[str, str]:
    text = PROGRAM
    defaults = {"AFTER": "pass", "STRATEGY": "SHARD_GRAD_OP", "FREEZE": freeze, "ORIGINALS": "True"}
    for name, value in {**defaults, **changes}.items():
        text = text.replace(name, value)
    return tree(train=text)


FLAT = {"ORIGINALS": "False", "STRATEGY": "FULL_SHARD"}


@pytest.mark.parametrize("changes", [{}, FLAT], ids=["gathered", "flat"])
@pytest.mark.parametrize("freeze", FREEZES.values(), ids=FREEZES.keys())
def test_the_helper_keeps_what_fsdp1_keeps(freeze: str, changes: dict[str, str], pool: Pool, tmp_path: Path) -> None:
    files = program(freeze, changes)
    after = rewrite_by_command(files)
    assert not [one for one in after.findings if one.rule == "FSDP218" and one.level is Level.MANUAL]
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert train_tree(pool, after.files, tmp_path / "after") == before
    # The advice for doing without the helper, followed in both.
    cleared = program(freeze, {**changes, "AFTER": "second.zero_grad()"})
    before = train_tree(pool, cleared, tmp_path / "cleared", fsdp1=True)
    assert train_tree(pool, rewrite_by_command(cleared).files, tmp_path / "cleared after") == before


@pytest.mark.parametrize("changes", EQUAL.values(), ids=EQUAL.keys())
def test_it_is_equal_and_nothing_is_said(changes: dict[str, str], pool: Pool, tmp_path: Path) -> None:
    files = program(FREEZES["a function"], changes)
    after = rewrite_by_command(files)
    kept = [one for one in after.findings if one.rule == "FSDP218" and "while a backward runs through" in one.message]
    assert not [one for one in kept if one.level is Level.MANUAL]
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert train_tree(pool, after.files, tmp_path / "after") == before


KEPT = {
    "FULL_SHARD": {"STRATEGY": "FULL_SHARD"},
    "flat": FLAT,
    "flat and gathered": {"ORIGINALS": "False"},
    "flat and whole": {"ORIGINALS": "False", "STRATEGY": "NO_SHARD"},
    "gathered": {},
    "a part of a unit": EQUAL["a part of a unit"],
    "filled with zeros": {"second.zero_grad()": "second.zero_grad(set_to_none=False)"},
    "cleared before": {"FREEZE": "second.zero_grad(); toggle(judge, False)"},
    "added to": {"second.zero_grad()": "judge.zero_grad() if _ else None"},
}


@pytest.mark.parametrize("changes", KEPT.values(), ids=KEPT.keys())
def test_the_shim_keeps_what_fsdp1_keeps(changes: dict[str, str], pool: Pool, tmp_path: Path) -> None:
    files = program(FREEZES["a function"], changes)
    after = rewrite_by_command(files, Settings(to="shim"))
    assert not [one for one in after.findings if one.rule == "FSDP218"]
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert train_tree(pool, after.files, tmp_path / "after") == before
