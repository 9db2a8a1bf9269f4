"""States of optimizers that are objects around another one."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

SOURCE = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from others import Lookahead

class Scheduled:
    def __init__(self, inner, lr=1):
        self.inner = inner

    def step(self):
        self.inner.step()

class Proxy:
    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(self.inner, name)

def run(model, accelerator, state):
    model = FSDP(model)
    adam = torch.optim.Adam(model.parameters())
    optim = {made}
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        {call}
"""
TAKES = "return FSDP.optim_state_dict(model, optim)"
LOADS = "optim.load_state_dict(FSDP.optim_state_dict_to_load(model, optim, state))"
LEVELS = {
    "Scheduled(torch.optim.Adam(model.parameters()))": "manual",
    "Scheduled(adam, lr=2)": "manual",
    "Proxy(adam)": "review",
    "Lookahead(adam)": "review",
    "Lookahead(torch.optim.SGD(model.parameters(), lr=1.0))": "review",
    "accelerator.prepare(adam)": "safe",
    "torch.optim.Adam(model.parameters())": "safe",
}


@pytest.mark.parametrize("call", [TAKES, LOADS], ids=["taken", "loaded"])
@pytest.mark.parametrize(("made", "level"), LEVELS.items(), ids=LEVELS.keys())
def test_how_sure_the_state_is(made: str, level: str, call: str) -> None:
    found = findings(SOURCE.format(made=made, call=call))
    levels = [one.level.value for one in found if one.rule in ("FSDP301", "FSDP304", "FSDP305")]
    strongest = max(levels, key=("safe", "review", "manual").index)
    assert strongest == level, [one.message for one in found]
