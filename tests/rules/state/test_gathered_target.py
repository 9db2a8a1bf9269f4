"""FSDP309: a whole state that is loaded into a model whose forwards no backward follows, which are still gathered."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, FullStateDictConfig, StateDictType

def sync(dst, src):
    with FSDP.state_dict_type(src, StateDictType.FULL_STATE_DICT):
        state = src.state_dict()
    with FSDP.state_dict_type(dst, StateDictType.FULL_STATE_DICT):
        dst.load_state_dict(state)

def value(net, x):
    return net(x)

def train(make, batches, optimizer):
    online = FSDP(make())
    target = FSDP(make())
    for x in batches:
        {run}
        loss = online(x).sum()
        loss.backward()
        optimizer.step()
        sync(target, online)
"""
GATHERED = {
    "in a block": "with torch.no_grad():\n            goal = target(x)",
    "by a function": "with torch.no_grad():\n            goal = value(target, x)",
}
FREED = {
    "with a graph, too": "with torch.no_grad():\n            goal = target(x)\n        target(x).sum().backward()",
    "never run": "goal = x",
}


ONE_LINE = HEAD.replace(
    "    online = FSDP(make())\n    target = FSDP(make())\n", "    online, target = FSDP(make()), FSDP(make())\n"
)


def written(run: str, head: str = HEAD) -> str:
    result = rewrite(head.format(run=run).encode())
    assert isinstance(result, Changed)
    return result.source.decode()


@pytest.mark.parametrize("head", [HEAD, ONE_LINE], ids=["two lines", "one line"])
@pytest.mark.parametrize("run", GATHERED.values(), ids=GATHERED)
def test_it_is_resharded_first(run: str, head: str) -> None:
    loop = "    for unit in dst.modules():\n        if isinstance(unit, FSDPModule):\n            unit.reshard()\n"
    assert f"{loop}    set_model_state_dict(\n" in written(run, head)


@pytest.mark.parametrize("run", FREED.values(), ids=FREED)
def test_nothing_is_written_where_a_backward_reshards_it(run: str) -> None:
    assert "reshard()" not in written(run)
