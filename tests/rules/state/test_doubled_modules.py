"""Full states of models that have one module under several names: torch's loader fails on them."""

from __future__ import annotations

import pytest

from tests.parity.trees import rewrite_tree

PROGRAM = """
import copy
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

class Block(nn.Module):
    def __init__(self, inner=None, size=4):
        super().__init__()
        self.up = nn.Linear(size, size)
        self.inner = inner if inner is not None else nn.Linear(size, size)

    def forward(self, x):
        return self.inner(self.up(x))

class Pair(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

class Net(nn.Module):
    def __init__(self, shared=None):
        super().__init__()
        self.tok = nn.Linear(4, 4)
        one = nn.Linear(4, 4)
{lines}

    def forward(self, x):
        return self.tok(x)

def main(file):
    model = FSDP(Net(), use_orig_params=True)
    with FSDP.state_dict_type(model, StateDictType.{kind}):
        model.load_state_dict(torch.load(file))
"""
DOUBLED = {
    "an attribute": "self.a = self.tok",
    "a part of a part": "block = Block()\nself.block = block\nself.up = block.up",
    "a comprehension": "self.layers = nn.ModuleList([one for _ in range(3)])",
    "a comprehension of blocks": "self.layers = nn.ModuleList(Block(one) for _ in range(3))",
    "a loop": "self.layers = nn.ModuleList()\nfor _ in range(3):\n    self.layers.append(one)",
    "arguments": "self.layers = nn.Sequential(one, nn.ReLU(), one)",
    "a method": 'self.add_module("x", one)\nself.y = one',
    "two blocks": "self.a = Block(one)\nself.b = Block(inner=one)",
    "a list": "layers = []\nlayers.append(one)\nlayers.append(one)\nself.layers = nn.Sequential(*layers)",
    "a tuple": "self.a, self.b = one, one",
    "arguments of a class": "self.pair = Pair(one, second=one)",
    "arguments by a choice": "other = one if shared else nn.Linear(4, 4)\nself.pair = Pair(one, other)",
    "a product": "self.layers = nn.ModuleList([nn.Linear(4, 4)] * 3)",
}
SINGLE = {
    "a comprehension": "self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])",
    "a comprehension of blocks": "self.layers = nn.ModuleList([Block() for _ in range(3)])",
    "copies": "self.a = one\nself.layers = nn.ModuleList([copy.deepcopy(one) for _ in range(3)])",
    "a parameter": "self.head = nn.Linear(4, 4)\nself.head.weight = self.tok.weight",
    "one name twice": "self.a = one\nself.a = one",
    "arms": "if shared:\n    self.a = one\nelse:\n    self.b = one",
    "a function": "def made():\n    return nn.Linear(4, 4)\nself.a = made()\nself.b = made()",
    "a place that another gets": "old = self.tok\nself.tok = nn.Linear(4, 4)\nself.old = old",
    "a list that is no module": "self.names = [one]\nself.a = one",
    "a loop": 'for number in range(3):\n    made = nn.Linear(4, 4)\n    self.add_module(f"l{number}", made)',
    "a tuple": "self.a, self.b = one, nn.Linear(4, 4)",
    "arguments of a class": "self.pair = Pair(one, nn.Linear(4, 4))",
    "a number": "size = 4\nself.a = Block(size=size)\nself.b = Block(size=size)",
    "a module that is no part": "block = Block()\nself.up = block.up",
}


def _said(lines: str, kind: str = "FULL_STATE_DICT") -> list[str]:
    indented = "\n".join(f"        {line}" for line in lines.split("\n"))
    return rewrite_tree({"train.py": PROGRAM.format(lines=indented, kind=kind)}).manual()


@pytest.mark.parametrize("name", DOUBLED)
def test_a_full_state_is_left_to_a_human(name: str) -> None:
    assert any("a model that has one module under several names" in one for one in _said(DOUBLED[name]))
    assert _said(DOUBLED[name], "SHARDED_STATE_DICT") == []


@pytest.mark.parametrize("name", SINGLE)
def test_one_of_other_models_is_loaded(name: str) -> None:
    assert _said(SINGLE[name]) == []
