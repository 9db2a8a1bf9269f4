"""FSDP220: a name that is the sharded model in one run of a loop, and a number or a text in the next."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite

SOURCE = """\
import copy
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Run:
    def __init__(self, net):
        self.model = FSDP(net, use_orig_params=True)
        {more}

    def pickled(self, x):
        with torch.no_grad():
            self.model(x)
        kept = {{}}
        for name, value in self.__dict__.items():
            kept[name] = copy.copy([p.clone() for p in value.parameters()])
        return kept
"""


@pytest.mark.parametrize(("more", "asks"), [("self.step = 0", True), ("self.name = 'run'", True), ("pass", False)])
def test_the_loop_asks_first_what_it_is(more: str, asks: bool) -> None:
    result = rewrite(SOURCE.format(more=more).encode())
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert "for unit in value.modules():" in text
    assert ("            if isinstance(value, torch.nn.Module):\n                for unit" in text) == asks
