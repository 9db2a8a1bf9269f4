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
    after = result.source.decode()  # type: ignore[union-attr]
    assert "fsdp_compat" not in after
    assert after.count("is_replaced = True") == after.count("is_replaced = False") == 1
    assert after.count("register_optimizer_step_pre_hook(refuse_early_optimizer)") == 1


@pytest.mark.parametrize("source", SEEN.values(), ids=SEEN.keys())
def test_one_that_can_is_not(source: str) -> None:
    assert _said(source) == []


@pytest.mark.parametrize("helpers", ["never", "needed"])
def test_the_guard_needs_no_helper(helpers: str) -> None:
    result = rewrite(HEAD + UNSEEN["a container"], Settings(helpers=helpers))
    assert "fsdp_compat" not in result.source.decode()  # type: ignore[union-attr]


#: Statements in which the call is a part of an expression, and what each gets.
PARTS = {
    "nets[0] = FSDP(net, use_orig_params=True)": ["review"],
    "nets.append(FSDP(net, use_orig_params=True))": ["review"],
    "train(FSDP(net, use_orig_params=True), optimizer)": ["manual"],
    "net = hold(FSDP(net, use_orig_params=True))": ["manual"],
    "nets = [FSDP(net, use_orig_params=True) for net in nets]": ["manual"],
    "nets = map(lambda net: FSDP(net, use_orig_params=True), nets)": ["manual"],
}


@pytest.mark.parametrize(("statement", "levels"), PARTS.items(), ids=PARTS.keys())
def test_a_part_of_an_expression_is_marked_where_the_statement_only_keeps_the_model(
    statement: str, levels: list[str]
) -> None:
    source = (
        f"def run(net, nets, make, hold, train):\n    optimizer = make(net)\n    {statement}\n    optimizer.step()\n"
    )
    assert _said(source, Settings(helpers="never")) == levels


def test_a_model_that_a_comprehension_names_is_left_to_the_reader() -> None:
    body = "optimizer = make(nets)\n    return [FSDP(net, use_orig_params=True) for net in nets]\n"
    assert _said(f"def run(nets, make):\n    {body}") == ["manual"]


def test_a_file_with_several_wraps_gets_the_hook_once() -> None:
    source = UNSEEN["a container"] + "    state.other = FSDP(state.other, use_orig_params=True)\n"
    after = rewrite(HEAD + source).source.decode()  # type: ignore[union-attr]
    assert after.count("def refuse_early_optimizer(") == 1
    assert after.count("is_replaced = True") == 2


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
