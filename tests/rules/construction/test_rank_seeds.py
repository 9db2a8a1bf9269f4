"""Weights that each rank draws with a seed of its own: what is sharded of them is not the same under FSDP2."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

BUILD = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def main(args, make, utils):
    {0}
    model = make()
    model = FSDP(model, use_orig_params=True)
    return model
"""


def said(body: str, settings: Settings | None = None) -> list[str]:
    found = findings(BUILD.format(body), settings)
    return [one.level.value for one in found if "the seed differs by rank" in one.message]


@pytest.mark.parametrize(
    "body",
    [
        "torch.manual_seed(args.seed + dist.get_rank())",
        "seed = args.seed + utils.get_rank()\n    torch.manual_seed(seed)",
        "rank = dist.get_rank()\n    seed = 7 + rank\n    pl.seed_everything(seed)",
        "torch.manual_seed(1)\n    torch.cuda.manual_seed_all(args.seed * 8 + args.local_rank)",
        "torch.manual_seed(dist.get_rank())\n    import t\n    words = t.GPT2Tokenizer.from_pretrained('a')",
        "torch.manual_seed(dist.get_rank())\n    from t import AutoConfig\n    AutoConfig.from_pretrained('a')",
    ],
)
def test_a_seed_of_its_own_for_each_rank(body: str) -> None:
    assert said(body) == said(body, Settings(helpers="always")) == ["review"]


@pytest.mark.parametrize(
    "body",
    [
        "torch.manual_seed(args.seed)",
        "torch.manual_seed(args.seed + dist.get_rank())\n    torch.manual_seed(args.seed)",
        "torch.manual_seed(args.ranking)",
        "torch.manual_seed(dist.get_rank())\n    make = Net.from_pretrained(args.path)",
        "random.seed(dist.get_rank())",
        "torch.Generator().manual_seed(dist.get_rank())",
        "args.generator.manual_seed(dist.get_rank())",
    ],
)
def test_the_same_weights_on_all_ranks(body: str) -> None:
    assert said(body) == []


@pytest.mark.parametrize(("sync", "expected"), [("True", []), ("args.sync", ["review"]), ("False", ["review"])])
def test_a_broadcast_of_all_weights(sync: str, expected: list[str]) -> None:
    source = BUILD.format("torch.manual_seed(dist.get_rank())").replace(
        "FSDP(model,", f"FSDP(model, sync_module_states={sync},"
    )
    assert [one.level.value for one in findings(source) if "the seed differs by rank" in one.message] == expected


SEEDING = """
import random, torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def seed_all(seed):
    random.seed(seed)
    torch.manual_seed(seed{0})

def main(seed, make):
    seed_all(seed)
    return FSDP(make(), use_orig_params=True)
"""


def test_a_function_that_seeds() -> None:
    def levels(more: str) -> list[str]:
        return [one.level.value for one in findings(SEEDING.format(more)) if "the seed differs by rank" in one.message]

    assert levels(" + dist.get_rank()") == ["review"]
    assert levels(" + 1") == []


BUILT = """
import argparse, torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from seeding import {seeds}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(2, 2)

def build(args):
    net = Net()
    {more}
    return FSDP(net, use_orig_params=True{sync})

def main(args):
    {seeds}(args.seed)
    return build(args)
"""
SEEDS = """
import random, torch
import torch.distributed as dist

def by_rank(seed):
    mine = seed + dist.get_rank()
    random.seed(mine)
    torch.manual_seed(mine)

def alike(seed):
    torch.manual_seed(seed)
    random.seed(seed + dist.get_rank())

def again(seed):
    by_rank(seed)
    alike(seed)
"""


@pytest.mark.parametrize(
    ("seeds", "more", "sync", "is_exact"),
    [
        ("by_rank", "", "", True),
        ("by_rank", "net = net.double()", ", sync_module_states=False", True),
        ("by_rank", "if args.even:\n        for p in net.parameters(): dist.broadcast(p.data, 0)", "", True),
        ("by_rank", "for p in net.parameters():\n        dist.broadcast(p.data, 0)", "", False),
        ("by_rank", "net.load_state_dict(torch.load(args.path))", "", False),
        ("by_rank", "", ", sync_module_states=args.sync", True),
        ("by_rank", "", ", sync_module_states=True", False),
        ("alike", "", "", False),
        ("again", "", "", False),
    ],
)
def test_the_helper_puts_together_what_fsdp1_trains(seeds: str, more: str, sync: str, is_exact: bool) -> None:
    result = rewrite(BUILT.format(seeds=seeds, more=more, sync=sync), seeding=SEEDS)
    assert isinstance(result, Changed)
    assert (b"fsdp_compat" in result.source) is is_exact
    assert any("a mix of" in one.message for one in result.findings) is is_exact
    assert not any("the seed differs by rank" in one.message for one in result.findings)
