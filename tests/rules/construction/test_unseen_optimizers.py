"""Optimizers whose origin cannot be followed: one line in front of the sharding, and only there."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings, rewrite

HEAD = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
STEP = "    for batch in batches:\n        model(batch).backward()\n        optimizer.step()\n"
UNSEEN = {
    "a function of a library": f"from somewhere import make\ndef run(net, batches):\n    optimizer = make(net)\n"
    f"    model = FSDP(net, use_orig_params=True)\n{STEP}",
    "a container": "def run(state, batches):\n    state.model = FSDP(state.model, use_orig_params=True)\n"
    "    for batch in batches:\n        state.model(batch).backward()\n        state.optimizer.step()\n",
    "a tuple of a library": "from somewhere import prepare\ndef run(batches):\n    net, optimizer, sched = prepare()\n"
    f"    model = FSDP(net, use_orig_params=True)\n{STEP}",
    "a method of a class": "class Trainer:\n    def __init__(self, net, registry):\n        self.model = net\n"
    "        self.optimizer = registry['sgd'](net)\n        self.wrap()\n    def wrap(self):\n"
    "        self.model = FSDP(self.model, use_orig_params=True)\n    def step(self, batch):\n"
    "        self.model(batch).backward()\n        self.optimizer.step()\n",
    "a lambda": "MAKERS = {'sgd': lambda m: torch.optim.SGD(m.parameters(), lr=0.1)}\n"
    f"def run(net, batches):\n    optimizer = MAKERS['sgd'](net)\n    model = FSDP(net, use_orig_params=True)\n{STEP}",
    "a closure": "def outer(get):\n    net, optimizer = get()\n    def run(batches):\n"
    "        model = FSDP(net, use_orig_params=True)\n        model(batches).backward()\n        optimizer.step()\n",
}
SEEN = {
    "built from the wrapped model": "def run(net, batches):\n    model = FSDP(net, use_orig_params=True)\n"
    f"    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n{STEP}",
    "a library's function that gets the wrapped model": "from somewhere import make\ndef run(Net, batches):\n"
    f"    model = Net()\n    model = FSDP(model, use_orig_params=True)\n    optimizer = make(model)\n{STEP}",
    "a function of the program": "def make(net):\n    return torch.optim.SGD(net.parameters(), lr=0.1)\n"
    f"def run(net, batches):\n    model = FSDP(net, use_orig_params=True)\n    optimizer = make(model)\n{STEP}",
    "groups that are collected": "def run(net, batches):\n    model = FSDP(net, use_orig_params=True)\n    some = []\n"
    "    for name, p in model.named_parameters():\n        some.append(p)\n"
    f"    optimizer = torch.optim.SGD([{{'params': some}}], lr=0.1)\n{STEP}",
    "nothing is trained": "def run(net, batch):\n    return FSDP(net, use_orig_params=True)(batch)\n",
    "made in place": "from somewhere import make\ndef run(Net, batches):\n"
    f"    model = FSDP(Net(), use_orig_params=True)\n    optimizer = make()\n{STEP}",
}


def _said(source: str, settings: Settings | None = None) -> list[str]:
    return [found.level.value for found in findings(HEAD + source, settings) if found.rule == "FSDP125"]


@pytest.mark.parametrize("source", UNSEEN.values(), ids=UNSEEN.keys())
def test_an_optimizer_that_cannot_be_followed_is_guarded(source: str) -> None:
    assert _said(source) == ["review"]
    result = rewrite(HEAD + source)
    assert result.source.decode().count("fsdp_compat.guard_optimizers(") == 1  # type: ignore[union-attr]


@pytest.mark.parametrize("source", SEEN.values(), ids=SEEN.keys())
def test_one_that_can_is_not(source: str) -> None:
    assert _said(source) == []


def test_without_helpers_it_is_left_to_the_reader() -> None:
    assert _said(UNSEEN["a container"], Settings(helpers="never")) == ["manual"]


DDP = """\
import torch
from torch.nn.parallel import DistributedDataParallel

def train(net, registry, batches):
    optimizer = registry["sgd"](net)
    net = DistributedDataParallel(net)
    for batch in batches:
        net(batch).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        net.zero_grad()
"""


@pytest.mark.parametrize(("program", "told"), [(DDP, []), (DDP.replace("DistributedData", "My"), ["review"])])
def test_the_optimizers_of_a_program_beside_it_that_has_ddp_alone_are_not_counted(
    program: str, told: list[str]
) -> None:
    said = findings(HEAD + SEEN["built from the wrapped model"], None, other=program)
    assert [found.level.value for found in said if found.rule == "FSDP125"] == told
