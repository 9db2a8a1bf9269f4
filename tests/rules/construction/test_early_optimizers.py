"""FSDP117: optimizers of models that other functions and files wrap afterwards, by the order of the calls."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

PARALLEL = """
from functools import partial

from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def shard_parts(net):
    for name, child in net.named_children():
        setattr(net, name, FSDP(child, use_orig_params=True))

def shard_blocks(net):
    for index, block in enumerate(net.blocks):
        net.blocks[index] = FSDP(block, use_orig_params=True)

def shard(net):
    return FSDP(net, use_orig_params=True)

only_blocks = partial(shard_blocks)
"""
MAIN = """
import torch
from parallel import only_blocks, shard, shard_blocks, shard_parts

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(2, 2)])
        self.head = torch.nn.Linear(2, 2)

    def groups(self):
        return [{{"params": p}} for p in self.parameters()]

def groups_of(model):
    return [{{"params": list(model.parameters())}}]

class Run:
    def __init__(self, net):
        self.net = net
        self.critic = torch.nn.Linear(2, 2)
        self.build()
        self.finish()

    def build(self):
        {method}

    def finish(self):
        {finish}

def main():
    net = Net()
    critic = Net()
    {body}
    return net, critic
"""


def said(body: str = "pass", method: str = "pass", finish: str = "pass") -> list[str]:
    source = MAIN.format(body=body.replace("\n", "\n    "), method=method, finish=finish)
    return [one.message for one in findings(source, parallel=PARALLEL) if one.rule == "FSDP117"]


BUILT = (
    "torch.optim.SGD(net.parameters())",
    "torch.optim.SGD(net.head.parameters())",
    "torch.optim.SGD(groups_of(net))",
    "torch.optim.SGD(net.groups())",
    "torch.optim.SGD([p for p in net.parameters() if p.requires_grad])",
    "torch.optim.SGD([{'params': [p for n, p in net.named_parameters()]}], lr=0.1)",
)


@pytest.mark.parametrize("wrap", ["shard_parts(net)", "net = shard(net)", "wrap = shard\nnet = wrap(net)"])
@pytest.mark.parametrize("built", BUILT)
def test_it_is_built_before_a_function_of_another_file_wraps(built: str, wrap: str) -> None:
    assert len(said(f"optimizer = {built}\n{wrap}")) == 1
    assert said(f"{wrap}\noptimizer = {built}") == []


FILLED = (
    "groups = {True: [], False: []}\nfor p in net.parameters():\n    groups[p.ndim > 1].append(p)",
    "groups = {True: [], False: []}\nfor _, p in net.named_parameters():\n    groups[True].extend([p])",
    "decay = []\nfor p in net.parameters():\n    decay.append(p)\ngroups = {True: decay, False: []}",
    "groups = {True: []}\ngroups[True] = list(net.parameters())\ngroups.setdefault(False, [])",
)


@pytest.mark.parametrize("fill", FILLED)
def test_its_groups_are_filled_one_by_one(fill: str) -> None:
    built = f"{fill}\noptimizer = torch.optim.SGD([dict(params=groups[True]), dict(params=groups[False])])"
    assert len(said(f"{built}\nnet = shard(net)")) == 1
    assert said(f"net = shard(net)\n{built}") == []
    assert said(f"{built}\ncritic = shard(critic)") == []


@pytest.mark.parametrize("wrap", ["shard_blocks(net)", "only_blocks(net)"])
def test_it_holds_the_parts_that_are_wrapped(wrap: str) -> None:
    assert len(said(f"optimizer = torch.optim.SGD(net.parameters())\n{wrap}")) == 1
    assert len(said(f"optimizer = torch.optim.SGD(net.blocks.parameters())\n{wrap}")) == 1
    assert said(f"optimizer = torch.optim.SGD(net.head.parameters())\n{wrap}") == []


def test_another_model_is_wrapped() -> None:
    assert said("optimizer = torch.optim.SGD(critic.parameters())\nnet = shard(net)") == []
    assert said("run = Run(net)", "self.optimizer = torch.optim.SGD(self.critic.parameters())") == []


def test_one_of_two_ways_wraps() -> None:
    way = "if critic:\n    optimizer = torch.optim.SGD(net.parameters())\nelse:\n    shard_parts(net)"
    assert said(way) == []


def test_methods_run_one_after_the_other() -> None:
    built, wrap = "self.optimizer = torch.optim.SGD(self.net.parameters())", "self.net = shard(self.net)"
    assert len(said("run = Run(net)", built, wrap)) == 1
    assert said("run = Run(net)", wrap, built) == []
    other = "self.optimizer = torch.optim.SGD(self.critic.parameters())"
    assert said("run = Run(net)", other, wrap) == []
    assert len(said("run = Run(net)\nnet = shard(net)", built)) == 1


BUILD = """
from functools import partial
import torch
from parallel import shard, shard_parts

def build(width):
    net = torch.nn.Sequential(torch.nn.Linear(width, 2), torch.nn.Linear(2, 2))
    {wrap}
    return net, torch.optim.SGD(groups_of(net))

def groups_of(model):
    return [p for p in model.parameters() if p.requires_grad]

def main():
    first = build(2)
    second = build(2)
    return first, second
"""


@pytest.mark.parametrize(
    "wrap",
    [
        "net = shard(net)",
        "shard_parts(net)",
        "net = partial(shard)(net)",
        "for at in range(2):\n        net[at] = shard(net[at])\n    net = shard(net)",
        "shard_parts(net)\n    net = shard(net)",
    ],
)
def test_its_function_runs_again_for_another_model(wrap: str) -> None:
    found = findings(BUILD.format(wrap=wrap), parallel=PARALLEL)
    assert [one.message for one in found if one.rule == "FSDP117"] == []


def test_one_wrapper_is_asked_for_the_model_and_for_the_optimizer() -> None:
    prepare = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Engine:
    def prepare(self, thing):
        return FSDP(thing, use_orig_params=True) if isinstance(thing, torch.nn.Module) else thing

def main(engine: Engine):
    engine = Engine()
    net = engine.prepare(torch.nn.Linear(2, 2))
    return net, engine.prepare(torch.optim.SGD(net.parameters()))
"""
    assert [one.message for one in findings(prepare) if one.rule == "FSDP117"] == []


def test_another_model_was_wrapped_by_the_same_function() -> None:
    assert len(said("net = shard(net)\noptimizer = torch.optim.SGD(critic.parameters())\ncritic = shard(critic)")) == 1
    both = "optimizer = torch.optim.SGD([*net.parameters(), *critic.parameters()])"
    assert len(said(f"net = shard(net)\n{both}\ncritic = shard(critic)")) == 1


TWICE = """
import torch
from parallel import shard

def build(kind, net):
    return shard(net) if kind else net

def main(kind, net, train):
    model = build(kind, net)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    model = build(kind, net)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
"""


def test_what_a_function_wraps_again_was_wrapped_before() -> None:
    assert not [one for one in findings(TWICE, parallel=PARALLEL) if one.rule == "FSDP117" and "kind" in one.message]


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("pass", True),
        ("opt.param_groups[0]['lr'] = 0.1", True),
        ("torch.save(opt.state_dict(), 'a.pt')", True),
        ("net.opt = opt", False),
        ("net.step = opt.step", False),
        ("KEPT.append(opt)", False),
        ("net.again = lambda: opt.step()", False),
        ("return net, opt", False),
    ],
)
def test_an_optimizer_that_a_function_keeps_to_itself_ends_before_the_wrap(line: str, ends: bool) -> None:
    source = f"""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

KEPT = []

class Net(torch.nn.Linear):
    pass

def pretrained(x):
    net = Net(3, 3)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(5):
        net(x).sum().backward()
        opt.step()
        opt.zero_grad()
    {line}
    return net

def main(x):
    net = pretrained(x)
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters())
    model(x).sum().backward()
    optimizer.step()
"""
    assert ("FSDP117" not in {one.rule for one in findings(source)}) is ends


@pytest.mark.parametrize(
    ("second", "lines"),
    [("FSDP(source, use_orig_params=True)", []), ("FSDP(torch.nn.Sequential(model), use_orig_params=True)", [9])],
    ids=["copy", "around"],
)
def test_a_copy_of_a_wrapped_module_is_another_model(second: str, lines: list[int]) -> None:
    source = f"""
import copy
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(net):
    source = copy.deepcopy(net)
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW([{{"params": list(model.parameters())}}])
    return optimizer, {second}
"""
    assert [found.line for found in findings(source) if found.rule == "FSDP117"] == lines
