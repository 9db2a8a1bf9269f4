"""Models that the settings of a run rule out: the other arm of the test under which they are wrapped."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

PROGRAM = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

def wrap_fsdp(model):
    return FSDP(model, use_orig_params=True)

def save(model, args):
    if {test}:
        state = model.state_dict()
    else:
        state = model.module.state_dict()
    torch.save(state, "a.pt")

def main(args, net):
    {choice}
    save(model, args)
    {more}
"""
CHOICES = [
    'model = wrap_fsdp(net) if args.mode == "fsdp" else DDP(net)',
    'if args.mode != "fsdp":\n        model = DDP(net)\n    else:\n        model = wrap_fsdp(net)',
    'if args.mode == "fsdp" and args.shards:\n        model = FSDP(net)\n    else:\n        model = DDP(net)',
]


def _said(test: str, choice: str, more: str = "") -> list[tuple[str, int]]:
    found = findings(PROGRAM.format(test=test, choice=choice, more=more))
    return [(one.rule, one.line) for one in found if one.rule in ("FSDP206", "FSDP309")]


@pytest.mark.parametrize("choice", CHOICES)
def test_the_other_arm_is_that_of_another_wrapper(choice: str) -> None:
    assert _said('args.mode == "fsdp"', choice) == [("FSDP309", 11)]


@pytest.mark.parametrize(
    ("test", "choice", "more"),
    [
        ('args.mode == "hsdp"', CHOICES[0], ""),
        ('args.kind == "fsdp"', CHOICES[0], ""),
        ('args.mode == "fsdp" and args.main', CHOICES[0], ""),
        ('args.mode == "fsdp"', CHOICES[0].replace("args.mode", "other.mode"), ""),
        ('args.mode == "fsdp"', CHOICES[0], 'args.mode = "ddp"\n    save(model, args)'),
        ('args.mode == "fsdp"', "model = wrap_fsdp(net)", ""),
    ],
)
def test_another_test_rules_nothing_out(test: str, choice: str, more: str) -> None:
    assert ("FSDP206", 13) in _said(test, choice, more)
