"""Models that are wrapped by FSDP1 or by DistributedDataParallel: under a test for "ddp" they are no sharded ones."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite_tree

WRAP = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

def wrap(conf, net):
    if conf["mode"] == "fsdp":
        net = FSDP(net)
    elif conf["mode"] == "ddp":
        net = DDP(net)
    return net
"""
MAIN = """
import torch
from wrapping import wrap

def main(conf, net):
    net = wrap(conf, net)
    if {test}:
        net.module.load_state_dict(torch.load("a.pt"))
        torch.save(net.module.state_dict(), "b.pt")
"""
MODES = [
    'conf["mode"] == "ddp"',
    'conf.mode == "torch_ddp" and conf.resume',
    'conf["mode"] in ("ddp", "DDP")',
    'conf["mode"] == "distributed_data_parallel"',
]
OPEN = ["conf.ddp", 'conf["mode"] in ("ddp", "fsdp")', 'conf["mode"] != "ddp"', 'conf["name"] == "a"']


def _run(test: str, wrap: str = WRAP) -> bool:
    files = {"wrapping.py": wrap.encode(), "main.py": MAIN.format(test=test).encode()}
    return isinstance(rewrite_tree(files).get("main.py"), Changed)


@pytest.mark.parametrize("test", MODES)
def test_under_a_test_for_ddp_nothing_is_rewritten(test: str) -> None:
    assert not _run(test)


@pytest.mark.parametrize("test", OPEN)
def test_what_may_be_fsdp_too_is_rewritten(test: str) -> None:
    assert _run(test)


@pytest.mark.parametrize("test", MODES[:3])
def test_a_strategy_that_is_called_ddp_is_fsdp1(test: str) -> None:
    """NO_SHARD is called ddp where nothing is wrapped by DistributedDataParallel."""
    alone = WRAP.replace("DDP(net)", "FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD)").replace(
        "from torch.nn.parallel import DistributedDataParallel as DDP",
        "from torch.distributed.fsdp import ShardingStrategy",
    )
    assert _run(test, alone)


SAVE = """
import torch
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from wrapping import wrap

def save(conf, net):
    if {test}:
        with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT, FullStateDictConfig(rank0_only=True)):
            state = net.state_dict()
    else:
        state = net.module.state_dict()
    torch.save(state, conf["path"])

def main(conf, net):
    save(conf, wrap(conf, net))
"""


@pytest.mark.parametrize(
    ("test", "stays"),
    [
        ('conf["mode"] == "fsdp"', True),
        ("conf.use_fsdp", True),
        ('conf["mode"] == "fsdp" and conf["rank"] == 0', False),
        ('conf["mode"] == "fsdp_offload"', False),
        ('conf["mode"] != "fsdp"', False),
        ('conf["mode"] == "fsdp" or conf["mode"] == "hsdp"', True),
    ],
)
def test_where_the_mode_is_another_one_the_wrapper_is_ddps(test: str, stays: bool) -> None:
    main = rewrite_tree({"wrapping.py": WRAP.encode(), "main.py": SAVE.format(test=test).encode()})["main.py"]
    assert isinstance(main, Changed)
    assert ("        state = net.module.state_dict()\n" in main.source.decode()) is stays
