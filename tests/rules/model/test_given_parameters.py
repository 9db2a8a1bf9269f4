"""Parameters of what a call gives, without a name in between: reported as those of a model with a name."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

MAKER = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Box:
    def __init__(self, net):
        self.brain = net

def make(net):
    box = Box(net)
    box.brain = FSDP(box.brain, use_orig_params=True)
    return box

def direct(net):
    return FSDP(net, use_orig_params=True)

def table(net):
    return {"main": direct(net)}

class Maker:
    def build(self, net):
        return make(net)

KINDS = {"box": make}

def plain(net):
    return Box(net)
"""
HEAD = """import torch
import torch.distributed as dist
import maker
from maker import KINDS, Maker, direct, make, plain, table

"""
GIVEN = (
    "make(net).brain",
    "direct(net)",
    "table(net)['main']",
    "Maker().build(net).brain",
    "KINDS['box'](net).brain",
    "maker.make(net).brain",
)
USES = {
    "for p in GIVEN.parameters():\n        p.grad.mul_(1 / p.grad.norm())": "FSDP222",
    "for p in GIVEN.parameters():\n        print(f'{p.grad.norm():.2f}')": "FSDP222",
    "return {n: p.grad.std().item() for n, p in GIVEN.named_parameters()}": "FSDP222",
    "kept = list(GIVEN.parameters())\n    return [float(p.grad.norm()) for p in kept]": "FSDP222",
    "return sum(p.norm() ** 2 for p in GIVEN.parameters())": "FSDP227",
    "return [p.numel() for p in GIVEN.parameters()]": "FSDP214",
    "for p in GIVEN.parameters():\n        p.data = p.data * 2": "FSDP217",
    "for p in GIVEN.parameters():\n        dist.broadcast(p, 0)": "FSDP222",
    "dist._broadcast_coalesced(net, list(GIVEN.parameters()), 1)": "FSDP222",
    "torch.nn.utils.clip_grad_norm_(GIVEN.parameters(), 1.0)": "FSDP215",
    "return [p for n, p in GIVEN.named_parameters() if n == 'head']": "FSDP207",
    "GIVEN.head = torch.nn.Linear(3, 3)": "FSDP229",
}


def rules(use: str, given: str, to: str) -> set[str]:
    use = use.replace("GIVEN", given)
    source = f"{HEAD}def look(net):\n    {use}\n"
    return {each.rule for each in findings(source, Settings(to=to), maker=MAKER) if each.level.value != "info"}


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(("use", "rule"), USES.items())
@pytest.mark.parametrize("given", GIVEN)
def test_what_a_call_gives_is_followed(given: str, use: str, rule: str, to: str) -> None:
    assert rule in rules(use, given, to)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("given", ["plain(net).body", "net.body", "torch.nn.Linear(3, 3)"])
def test_other_calls_give_none(given: str, use: str) -> None:
    assert rules(use, given, "native") == set()
