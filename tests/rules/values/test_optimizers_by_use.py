"""What takes parameters and steps, or is asked for as an Optimizer, is no model, whatever else may come its way."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

REGISTRY = """import functools
import torch
from torch.distributed.fsdp import FullyShardedDataParallel

REGISTRY = {}


def configurable(target):
    @functools.wraps(target, updated=())
    def bound(*args, **kwargs):
        given = {name: REGISTRY[value] for name, value in kwargs.items()}
        return target(*args, **given)

    REGISTRY[target.__name__] = bound
    return bound


configurable(torch.optim.Adam)
configurable(FullyShardedDataParallel)


def build(net):
    return FullyShardedDataParallel(net, use_orig_params=True)
"""
TRAIN = """from registry import build, configurable


@configurable
def train(model, batches, optimizer=None):
    {made}
    for batch in batches:
        opt.zero_grad()
        model(batch).sum().backward()
        opt.step()


def main(net, batches):
    train(build(net), batches)
"""


@pytest.mark.parametrize(
    "made",
    [
        "opt = optimizer(model.parameters())",
        "opt = optimizer(model.parameters(), lr=0.1)",
        "opt = optimizer(params=model.parameters())",
        "opt = optimizer([one for one in model.parameters() if one.requires_grad])",
        "opt = optimizer([{'params': model.parameters()}])",
        "opt = optimizer(list(model.parameters()))",
        "opt = optimizer(filter(lambda one: one.requires_grad, model.parameters()))",
        "parameters = model.parameters()\n    opt = optimizer(parameters)",
    ],
)
def test_nothing_is_put_in_front_of_its_zero_grad(made: str) -> None:
    source = TRAIN.format(made=made)
    assert [one for one in findings(source, registry=REGISTRY) if one.rule == "FSDP220"] == []


STRATEGY = """import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn import Module
{imports}

def save(path, state):
    for key, one in state.items():
        if isinstance(one, Module):
            state[key] = one.state_dict()


def load(path, state, model):
    checkpoint = torch.load(path)
{body}


def main(net, path):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {{"model": model, "optimizer": optimizer}}
    load(path, state, model)
"""
BODIES = [
    "    for key, one in state.items():\n        if isinstance(one, {cls}):\n"
    "            one.load_state_dict(checkpoint[key])",
    "    optimizers = {{key: one for key, one in state.items() if isinstance(one, {cls})}}\n"
    "    for key, one in optimizers.items():\n        one.load_state_dict(checkpoint[key])",
    "    optimizers = [one for one in state.values() if isinstance(one, {cls})]\n"
    "    for one in optimizers:\n        one.load_state_dict(checkpoint)",
    "    one = next(one for one in state.values() if isinstance(one, {cls}))\n    one.load_state_dict(checkpoint)",
    "    for key, one in state.items():\n        if not isinstance(one, {cls}):\n            continue\n"
    "        one.load_state_dict(checkpoint[key])",
]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("cls", ["Optimizer", "torch.optim.Optimizer", "torch.optim.SGD"])
def test_no_test_is_written_that_is_never_true(body: str, cls: str) -> None:
    source = STRATEGY.format(imports="from torch.optim import Optimizer\n", body=body.format(cls=cls))
    result = rewrite(source)
    assert isinstance(result, Changed)
    written = result.source.decode()
    assert "isinstance(one, FSDPModule)" not in written and "set_model_state_dict" not in written


def test_its_groups_are_still_read() -> None:
    source = (
        "import torch\nimport torch.distributed as dist\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        "def train(net, batches, kind):\n    model = FSDP(net, use_orig_params=True)\n"
        "    opt = kind(model.parameters())\n    for batch in batches:\n        opt.zero_grad()\n"
        "        model(batch).sum().backward()\n        for group in opt.param_groups:\n"
        "            for one in group['params']:\n                dist.all_reduce(one.grad)\n        opt.step()\n"
    )
    assert [one.rule for one in findings(source) if one.rule == "FSDP222"] == ["FSDP222"]
