"""Rule FSDP237: gradients that are differentiated again."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_noop, findings, rewrite

WRAP = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
import example

def build(net):
    return FSDP(net)

model = build(net)
example.train(model, batch)
"""


def levels(source: str, **others: str) -> list[str]:
    return [found.level.value for found in findings(source, **others) if found.rule == "FSDP237"]


def test_noop_without_fsdp() -> None:
    check_noop(
        "import torch\n\ndef train(model, x):\n"
        "    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)\n    slope.sum().backward()\n"
    )


@pytest.mark.parametrize(
    ("flag", "more"),
    [
        ("create_graph=second", "example.train(model, batch, True)"),
        ("create_graph=second", "example.train(model, batch, second=args.penalty)"),
        ("create_graph=model.training", ""),
        ("**{'create_graph': True}", ""),
        ("None, True, True", ""),
    ],
)
def test_the_graph_is_asked_for_in_other_forms(flag: str, more: str) -> None:
    source = (
        "import torch\n\ndef train(model, x, second=False):\n"
        f"    (slope,) = torch.autograd.grad(model(x).sum(), x, {flag})\n    slope.sum().backward()\n"
    )
    assert levels(source, w=f"{WRAP}{more}\n") == ["review"]


@pytest.mark.parametrize("flag", ["", ", create_graph=False", ", retain_graph=True", ", None, True, False"])
def test_noop_for_first_derivatives(flag: str) -> None:
    source = (
        "import torch\n\ndef train(model, x, second=False):\n    out = model(x).sum()\n"
        f"    (slope,) = torch.autograd.grad(out, x{flag})\n    out.backward()\n"
    )
    assert levels(source, w=WRAP) == []


def test_noop_for_a_model_that_is_not_sharded() -> None:
    source = (
        "import torch\n\ndef train(model, x):\n    model(x).sum().backward()\n\ndef other(critic, x):\n"
        "    (slope,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)\n    slope.sum().backward()\n"
    )
    assert levels(source, w=WRAP) == []


@pytest.mark.parametrize(
    "body",
    [
        "(slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)\n"
        "    scaler.scale(slope.sum()).backward()",
        "slope = autograd.grad(outputs=model(x).sum(), inputs=[x], create_graph=True)\n    loss = slope[0].norm()\n"
        "    accelerator.backward(loss)",
        "loss = model(x).sum() + term(model, x)\n    loss.backward()",
    ],
)
def test_the_model_stays_gathered_between_the_two(body: str) -> None:
    source = (
        "import torch\nfrom torch import autograd\n\ndef term(net, x):\n"
        "    return torch.autograd.grad(net(x).sum(), x, create_graph=True)[0].norm()\n\n"
        f"def train(model, x, scaler=None, accelerator=None, other=None):\n    {body}\n    return x\n"
    )
    result = rewrite(source, w=WRAP)
    assert isinstance(result, Changed)
    after = result.source.decode()
    train = after[after.index("def train") :]
    kept, released = (train.index(f"model.set_reshard_after_backward({flag})") for flag in (False, True))
    assert (
        kept < train.index("backward", kept + 40) < released < train.index("unit.reshard()") < train.index("return x")
    )
    assert "reshard" not in after[: after.index("def train")]
    assert levels(source, w=WRAP) == ["review"]


RESIDUAL = """
import torch

def slope(of, x):
    return torch.autograd.grad(of, x, torch.ones_like(of), create_graph=True)[0]

def residual(net, x):
    once = slope(net(x), x)
    return {again}

def train(model, x):
    size = residual(model, x).detach().abs()
    return size
"""


def test_a_function_that_differentiates_twice_itself_needs_no_backward() -> None:
    result = rewrite(RESIDUAL.format(again="slope(once, x)"), w=WRAP)
    assert isinstance(result, Changed)
    train = result.source.decode().partition("def train")[2]
    kept, released = (train.index(f"model.set_reshard_after_backward({flag})") for flag in (False, True))
    assert kept < train.index("residual(") < released < train.index("unit.reshard()") < train.index("return size")
    assert levels(RESIDUAL.format(again="slope(once, x)"), w=WRAP) == ["review"]
    assert levels(RESIDUAL.format(again="once"), w=WRAP) == []


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    ("strategy", "between", "found"),
    [
        ("ShardingStrategy.NO_SHARD", "loss = slope.sum()", True),
        ("ShardingStrategy.NO_SHARD", "loss = model(x).sum() + slope.sum()", False),
        ("ShardingStrategy.SHARD_GRAD_OP", "loss = slope.sum()", False),
        ("modes[x.mode]", "loss = slope.sum()", True),
        ("modes['none'] if x.mode else modes['op']", "loss = slope.sum()", True),
        ("modes['op'] if x.mode else ShardingStrategy.FULL_SHARD", "loss = slope.sum()", False),
    ],
)
def test_no_shard_reduces_none_of_these_gradients(strategy: str, between: str, found: bool, to: str) -> None:
    source = f"""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

    def train(net, x):
        modes = {{"op": ShardingStrategy.SHARD_GRAD_OP, "none": ShardingStrategy.NO_SHARD}}
        model = FSDP(net, sharding_strategy={strategy})
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        {between}
        loss.backward()
    """
    every = [one for one in findings(source, Settings(to=to)) if one.rule == "FSDP237"]
    assert [one.level.value for one in every if "did not reduce" in one.message] == ["manual"] * found
    assert to == "native" or len(every) == found


def test_a_backward_that_nobody_sees_is_left_to_a_human() -> None:
    source = (
        "import torch\n\ndef train(model, x, bus):\n"
        "    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)\n    bus.send(slope.sum())\n"
    )
    assert levels(source, w=WRAP.replace("batch)", "batch, bus)")) == ["manual"]


def test_gradients_of_grad_have_no_graph() -> None:
    source = "def train(model, x):\n    loss = model(x).sum()\n    loss.backward(create_graph=True)\n"
    assert levels(source, w=WRAP) == ["manual"]


def test_a_method_that_builds_the_graph_is_followed_to_the_backward() -> None:
    source = """
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    class Trainer:
        def __init__(self, net):
            self.critic = FSDP(net)

        def r1(self, real):
            (slope,) = torch.autograd.grad(self.critic(real).sum(), real, create_graph=True)
            return slope.square().sum()

        def step(self, real):
            loss = self.r1(real)
            loss.backward()
    """
    result = rewrite(source)
    assert isinstance(result, Changed)
    after = result.source.decode()
    assert after.index("def step") < after.index("self.critic.set_reshard_after_backward(False)")
    assert after.count("set_reshard_after_backward") == 2


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    ("by", "graph", "strategy", "found"),
    [
        ("place", "create_graph=True", "FULL_SHARD", ["manual"]),
        ("place", "create_graph=self.training", "SHARD_GRAD_OP", ["manual"]),
        ("place", "create_graph=self.training", "NO_SHARD", []),
        ("place", "create_graph=False", "FULL_SHARD", []),
        ("place", "retain_graph=True", "FULL_SHARD", []),
        ("(weight,)", "create_graph=True", "FULL_SHARD", []),
    ],
)
def test_a_forward_that_differentiates_trained_wrongly_under_fsdp1(
    by: str, graph: str, strategy: str, found: list[str], to: str
) -> None:
    source = f"""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(3, 1)

    def forward(self, place):
        energy = self.net(place).sum()
        weight = self.net.weight * 1.0
        return energy, -torch.autograd.grad(energy, {by}, {graph})[0]

def train(batches, optimizer):
    model = FSDP(Field(), sharding_strategy=ShardingStrategy.{strategy})
    for place in batches:
        energy, force = model(place)
        (energy + force.square().sum()).backward()
        optimizer.step()
"""
    said = [one.level.value for one in findings(source, Settings(to=to)) if one.rule == "FSDP237"]
    assert said == found
