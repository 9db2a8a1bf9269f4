"""The parameters of a part of a sharded model are sharded, too, whoever asks for them, and in whatever file."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

MAIN = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def run(net, teacher, batches, hook):
    model = FSDP(net, use_orig_params=True)
    for batch in batches:
        model(batch).sum().backward()
        {line}
"""
LINES = {
    "FSDP207": "print([name for name, _ in model.head.named_parameters() if name == 'weight'])",
    "FSDP212": "for p in model.head.parameters(): p.register_hook(hook)",
    "FSDP213": "print([p for p in model.head.parameters() if p.ndim >= 2])",
    "FSDP214": "print(sum(p.numel() for p in model.head.parameters()))",
    "FSDP215": "torch.nn.utils.clip_grad_norm_(model.head.parameters(), 1.0)",
    "FSDP217": "for p in model.layers[0].parameters(): p.data.add_(torch.randn(p.shape))",
    "FSDP222": "for p in model.layers[0].parameters(): dist.all_reduce(p.grad)",
    "FSDP226": "for p in model.layers[0].parameters(): p.data.normal_()",
    "FSDP227": "torch.nn.utils.parameters_to_vector(model.head.parameters())",
    "FSDP228": "return Lamb(model.head.parameters())",
}


@pytest.mark.parametrize(("rule", "line"), LINES.items(), ids=LINES)
def test_a_part_has_sharded_parameters(rule: str, line: str) -> None:
    assert rule in {found.rule for found in findings(MAIN.format(line=line))}
    other = line.replace("model.", "teacher.")
    assert rule not in {found.rule for found in findings(MAIN.format(line=other))}


def test_names_in_a_part_had_a_prefix_only_where_it_is_a_unit() -> None:
    found = findings(MAIN.format(line=LINES["FSDP207"]))
    assert [one.level.value for one in found if one.rule == "FSDP207"] == ["review"]


TRAINER = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from example import limit

class Trainer:
    def __init__(self, net, teacher):
        self.net = FSDP(net, use_orig_params=True)
        self.teacher = teacher
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def step(self, batch):
        self.net(batch).sum().backward()
        limit({given})
"""
LIMIT = """
import itertools
import torch

def limit(of):
    torch.nn.utils.clip_grad_norm_({of}, 1.0)
"""


@pytest.mark.parametrize(
    ("given", "used", "is_sharded"),
    [
        ("self.net.parameters()", "of", True),
        ("list(self.net.parameters())", "list(of)", True),
        ("self.net.head.parameters()", "of", True),
        ("self.net.layers[0].parameters()", "of", True),
        ("[p for p in self.net.head.parameters() if p.requires_grad]", "of", True),
        ("self.optimizer", "of.param_groups[0]['params']", True),
        ("self.optimizer", "[p for group in of.param_groups for p in group['params']]", True),
        ("self.net", "of.head.parameters()", True),
        ("self.net", "itertools.chain([], of.parameters())", True),
        ("self.net", "itertools.chain.from_iterable([of.parameters()])", True),
        ("self.teacher.parameters()", "of", False),
        ("self.teacher", "itertools.chain(of.parameters(), of.head.parameters())", False),
        ("torch.nn.Linear(2, 2).parameters()", "of", False),
    ],
)
def test_clipping_of_what_another_file_hands_on(given: str, used: str, is_sharded: bool) -> None:
    found = findings(LIMIT.format(of=used), main=TRAINER.format(given=given))
    assert ("FSDP215" in {one.rule for one in found}) is is_sharded


@pytest.mark.parametrize(
    ("imported", "call", "is_reported"),
    [
        ("import bitsandbytes as bnb", "bnb.optim.AdamW8bit(model.parameters(), lr=1e-3)", True),
        ("import bitsandbytes as bnb", "bnb.optim.Lion8bit([{'params': list(model.head.parameters())}])", True),
        ("from bitsandbytes.optim import PagedAdamW", "PagedAdamW(model.parameters())", True),
        ("from apex.optimizers import FusedAdam", "FusedAdam(model.parameters())", True),
        ("import bitsandbytes as bnb", "bnb.optim.AdamW8bit(teacher.parameters())", False),
        ("import bitsandbytes as bnb", "bnb.nn.Linear4bit(2, 2)", False),
        ("from torchao.optim import AdamW8bit", "AdamW8bit(model.parameters())", False),
    ],
)
def test_optimizers_of_bitsandbytes_take_no_dtensors(imported: str, call: str, is_reported: bool) -> None:
    found = findings(imported + MAIN.format(line=f"return {call}"))
    assert ("FSDP228" in {one.rule for one in found}) is is_reported
