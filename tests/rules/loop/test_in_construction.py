"""What a constructor gives to the parts of its object comes before whoever makes the object wraps them (FSDP229)."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

BASE = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.frames = 1

    def forward(self, x):
        return self.head(x) * self.frames

class Base(nn.Module):
    def __init__(self, args):
        super().__init__()
        self._make(args)

    def _make(self, args):
        self.net = Net()
        self.inner = self.net
"""
TRAINER = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from example import Own

def train(args):
    own = Own(args)
    own.net = FSDP(own.net)
    return own
"""
OWN = """
from base import Base

class Own(Base):
    def __init__(self, args):
        super().__init__(args)
        {0}
{1}"""


def said(source: str, base: str = BASE, trainer: str = TRAINER) -> list[str]:
    found = findings(source, base=base, trainer=trainer)
    return [entry.level.value for entry in found if entry.rule == "FSDP229"]


@pytest.mark.parametrize(
    "line",
    [
        "self.net.frames = args.frames",
        "if args.many:\n            self.net.frames = 3",
        'setattr(self.net, "frames", 2)',
    ],
)
def test_a_part_that_a_base_class_has_made(line: str) -> None:
    assert said(OWN.format(line, "")) == []
    assert said(BASE.replace("self._make(args)", f"self._make(args)\n        {line}").replace("Base", "Own")) == []


@pytest.mark.parametrize(
    ("source", "base", "trainer"),
    [
        (OWN.format("pass", "\n    def late(self, args):\n        self.net.frames = 3\n"), BASE, TRAINER),
        (
            OWN.format("self.net.frames = 3", ""),
            BASE.replace("self.net = Net()", "self.net = FSDP(Net())").replace(
                "from torch import nn",
                "from torch import nn\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP",
            ),
            TRAINER,
        ),
        (
            OWN.format("self.net.frames = 3", ""),
            BASE.replace("self.net = Net()", "self.net = wrapped(Net())").replace(
                "from torch import nn", "from torch import nn\nfrom trainer import wrapped"
            ),
            f"{TRAINER}\ndef wrapped(net):\n    return FSDP(net)\n",
        ),
        (
            OWN.format("self.net.frames = 3", ""),
            BASE.replace("self.net = Net()", "self.net = args"),
            TRAINER.replace("own = Own(args)", "own = Own(FSDP(args))"),
        ),
    ],
    ids=["another method", "wrapped in the base", "wrapped by a function", "given to the constructor"],
)
def test_a_part_that_may_be_wrapped_by_then(source: str, base: str, trainer: str) -> None:
    assert len(said(source, base, trainer)) == 1
