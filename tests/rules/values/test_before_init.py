"""What an ``__init__`` does with its own modules, before something wraps them, while it does, or after."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

SOURCE = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Net(nn.Module):
    def __init__(self, inner=None):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.inner = inner
        {wrap}
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.kaiming_normal_(m.weight)

def shard(net):
    for name, child in net.named_children():
        setattr(net, name, FSDP(child, use_orig_params=True))
    return FSDP(net, use_orig_params=True)

def main(inner):
    {made}

main(nn.Linear(2, 2))
main(nn.Linear(2, 2))
"""
LATER = ("net = shard(Net())", "net = Net()\n    other = Net()\n    return shard(net), shard(other)")
SOONER = (
    "net = Net(FSDP(inner, use_orig_params=True))",
    "inner = shard(inner)\n    net = Net(inner)\n    return shard(net)",
)


def said(made: str, wrap: str = "pass") -> bool:
    return any(one.rule == "FSDP226" for one in findings(SOURCE.format(made=made, wrap=wrap)))


@pytest.mark.parametrize("made", LATER)
def test_its_parts_are_wrapped_later(made: str) -> None:
    assert not said(made)


@pytest.mark.parametrize("made", SOONER)
def test_it_is_given_one_that_is_wrapped(made: str) -> None:
    assert said(made)


def test_it_wraps_one_itself() -> None:
    assert said("net = Net()", "self.layer = FSDP(self.layer, use_orig_params=True)")
