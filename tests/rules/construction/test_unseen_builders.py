"""FSDP125: optimizers whose builders run where no call of them is seen, before the wrap."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

#: Builders that run where no call of them is seen, or whose model is wrapped by somebody else.
RUN_UNSEEN = {
    "an object of torch's optimizer whose model is wrapped from outside": """
import registry, torch

class Engine:
    def __init__(self, cfg):
        self.net = registry.build_net(cfg)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def main(cfg, batches):
    work = Engine(cfg)
    work.net = FSDP(work.net, use_orig_params=True)
    for batch in batches:
        work.net(batch).sum().backward()
        work.optimizer.step()
        work.optimizer.zero_grad()
""",
    "a property": """
import registry, torch
from functools import cached_property
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Engine:
    def __init__(self, cfg):
        self.cfg = cfg
        self.net = registry.build_net(cfg)

    @cached_property
    def optimizer(self):
        optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        return optimizer

    def shard(self):
        self.net = FSDP(self.net, use_orig_params=True)

def main(cfg, batches):
    engine = Engine(cfg)
    scheduler = registry.schedule(engine.optimizer)
    engine.shard()
    for batch in batches:
        engine.net(batch).sum().backward()
        engine.optimizer.step()
""",
    "a method that is called by its name": """
import registry, torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Work:
    def setup(self, cfg):
        self.net = registry.build_net(cfg)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def fit(self, batches):
        self.net = FSDP(self.net, use_orig_params=True)
        for batch in batches:
            self.net(batch).sum().backward()
            self.optimizer.step()

def main(cfg, batches):
    work = Work()
    for name in cfg.stages:
        getattr(work, name)(cfg)
    work.fit(batches)
""",
    "a function inside that is called above": """
import registry, torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def main(cfg, batches):
    net = registry.Net(cfg)

    def make():
        return torch.optim.SGD(net.parameters(), lr=0.1)

    optimizer = make()
    net = FSDP(net, use_orig_params=True)
    for batch in batches:
        net(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "a property and a registry": """
import registry
from functools import cached_property
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Engine:
    def __init__(self, cfg):
        self.cfg = cfg
        self.net = registry.build_net(cfg)

    @cached_property
    def optimizer(self):
        optimizer = registry.OPTIMIZERS[self.cfg.opt](self.net)
        return optimizer

    def shard(self):
        self.net = FSDP(self.net, use_orig_params=True)

def main(cfg, batches):
    engine = Engine(cfg)
    scheduler = registry.schedule(engine.optimizer)
    engine.shard()
    for batch in batches:
        engine.net(batch).sum().backward()
        engine.optimizer.step()
""",
    "__post_init__": """
import registry
from dataclasses import dataclass
from typing import Any
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

@dataclass
class Engine:
    net: Any
    kind: str

    def __post_init__(self):
        self.optimizer = registry.OPTIMIZERS[self.kind](self.net)

def main(cfg, batches):
    net = registry.build_net(cfg)
    engine = Engine(net, cfg.opt)
    net = FSDP(net, use_orig_params=True)
    for batch in batches:
        net(batch).sum().backward()
        engine.optimizer.step()
""",
    "__enter__": """
import registry
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Engine:
    def __init__(self, net):
        self.net = net

    def __enter__(self):
        self.optimizer = registry.OPTIMIZERS["a"](self.net)
        return self

    def __call__(self, batches):
        for batch in batches:
            self.net(batch).sum().backward()
            self.optimizer.step()

def main(cfg, batches):
    net = registry.build_net(cfg)
    with Engine(net) as engine:
        net = FSDP(net, use_orig_params=True)
        engine(batches)
""",
    "a dictionary of functions": """
import registry
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def make_state(net, kind):
    optimizer = registry.OPTIMIZERS[kind](net)
    return {"optimizer": optimizer, "step": 0}

MAKERS = {"plain": make_state}

def main(cfg, batches):
    net = registry.build_net(cfg)
    state = MAKERS[cfg.maker](net, cfg.opt)
    net = FSDP(net, use_orig_params=True)
    for batch in batches:
        net(batch).sum().backward()
        state["optimizer"].step()
""",
    "map": """
import registry
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def main(cfg, batches):
    net = registry.build_net(cfg)
    made = list(map(make, [net]))
    net = FSDP(net, use_orig_params=True)
    for batch in batches:
        net(batch).sum().backward()
        made[0].step()

def make(net):
    optimizer = registry.OPTIMIZERS["a"](net)
    return optimizer
""",
    "a training function that is not the entry": """
import registry
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def start(cfg):
    encoder = registry.build_net(cfg)
    updater = registry.Updater(encoder)
    updater.optimizer = registry.OPTIMIZERS[cfg.opt](encoder)
    registry.launch(train, encoder, updater)

def train(encoder, updater, batches):
    encoder = FSDP(encoder, use_orig_params=True)
    for batch in batches:
        encoder(batch).sum().backward()
        updater.optimizer.step()
""",
    "parameters by another method": """
import torch
import registry
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def main(cfg, batches):
    net = registry.Net(cfg)
    optimizer = registry.OPTIMIZERS[cfg.opt](net.groups(cfg.lr))
    net = FSDP(net, use_orig_params=True)
    for batch in batches:
        net(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("source", RUN_UNSEEN.values(), ids=RUN_UNSEEN.keys())
def test_a_builder_that_runs_unseen_is_guarded(source: str) -> None:
    assert {"FSDP117", "FSDP125"} & {found.rule for found in findings(source)}
