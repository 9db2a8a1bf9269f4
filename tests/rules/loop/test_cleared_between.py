"""Rule FSDP238: gradients cleared between a forward and its backward."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_noop, findings, rewrite

HEAD = """
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, always_wrap_policy

"""
OPTIONS = "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, auto_wrap_policy=always_wrap_policy, use_orig_params=True"
WRAP = f"FSDP(net, {OPTIONS})"
LOOP = """
def train(net, batches):
    model = {wrap}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
{body}
"""


def levels(source: str, **others: str) -> list[tuple[str, int]]:
    """What is said: by the rule, or, as ``kept``, by a wrap that carries the gradients over."""
    said = [found for found in findings(source, **others) if "FSDP1" in found.message]
    own = [(found.level.value, found.line) for found in said if found.rule == "FSDP238"]
    return own + [("kept", found.line) for found in said if "between a forward and its backward" in found.message]


def loop(body: str, wrap: str = WRAP, net: str = "") -> list[str]:
    text = HEAD + net + LOOP.format(wrap=wrap, body=textwrap.indent(textwrap.dedent(body).strip(), " " * 8))
    return [level for level, _ in levels(text)]


BETWEEN = """
loss = model(batch).sum()
optimizer.zero_grad()
loss.backward()
optimizer.step()
"""


def test_noop_without_fsdp() -> None:
    check_noop("def train(model, opt, x):\n    loss = model(x).sum()\n    opt.zero_grad()\n    loss.backward()\n")


@pytest.mark.parametrize(
    "body",
    [
        BETWEEN,
        BETWEEN.replace("optimizer.zero_grad()", "for one in [optimizer]:\n    one.zero_grad(set_to_none=True)"),
        BETWEEN.replace("optimizer.zero_grad()", "if batch is not None:\n    optimizer.zero_grad()"),
        "out = model(batch)\noptimizer.zero_grad()\nloss = out.square().mean()\n(loss / 2).backward()",
        "loss = model(batch).sum()\noptimizer.zero_grad()\nscaler.scale(loss).backward()\noptimizer.step()",
        "loss = model(batch).sum()\noptimizer.zero_grad()\ntorch.autograd.backward([loss])\noptimizer.step()",
    ],
)
def test_the_wrap_keeps_what_is_cleared_between(body: str) -> None:
    assert loop(body) == ["kept"]


@pytest.mark.parametrize(
    "clear",
    ["model.zero_grad()", "model.zero_grad(set_to_none=False)", "for p in model.parameters():\n    p.grad = None"],
)
def test_what_clears_nothing_stays(clear: str) -> None:
    body = BETWEEN.replace("optimizer.zero_grad()", clear)
    text = HEAD + LOOP.format(wrap=WRAP, body=textwrap.indent(body, " " * 8))
    done = rewrite(text)
    assert isinstance(done, Changed)
    assert textwrap.indent(body, " " * 8) in done.source.decode()
    assert {found.rule for found in done.findings if found.line > text.count("\n", 0, text.index("loss ="))} == {
        "FSDP238"
    }
    assert loop(body) == ["info"]
    assert loop(body, WRAP.replace("=True", "=False")) == []


@pytest.mark.parametrize(
    "body",
    [
        "optimizer.zero_grad()\nloss = model(batch).sum()\nloss.backward()\noptimizer.step()",
        "loss = model(batch).sum()\nloss.backward()\noptimizer.step()\noptimizer.zero_grad()",
        "loss = model(batch).sum()\noptimizer.zero_grad(set_to_none=False)\nloss.backward()\noptimizer.step()",
        # Nothing is left to clear there.
        "optimizer.zero_grad()\nloss = model(batch).sum()\noptimizer.zero_grad()\nloss.backward()\noptimizer.step()",
        "with torch.no_grad():\n    model(batch)\noptimizer.zero_grad()\nmodel(batch).sum().backward()",
        "with torch.no_grad():\n    seen = model(batch)\noptimizer.zero_grad()\nloss = model(batch + seen).sum()\n"
        "loss.backward()\noptimizer.step()",
        # Another function runs the forward, and is given its model.
        "seen = model(batch).detach()\noptimizer.zero_grad()\nloss = compute(model, seen)\nloss.backward()",
    ],
)
def test_the_usual_places_are_silent(body: str) -> None:
    assert loop(body) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("SHARD_GRAD_OP", "FULL_SHARD", []),
        ("SHARD_GRAD_OP", "NO_SHARD", []),
        ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2", ["kept"]),
        (", use_orig_params=True", "", []),
        ("use_orig_params=True", "use_orig_params=False", []),
        ("use_orig_params=True", "use_orig_params=batches.original", ["kept"]),
        ("ShardingStrategy.SHARD_GRAD_OP", "ShardingStrategy[batches.strategy]", ["kept"]),
        (", auto_wrap_policy=always_wrap_policy", "", []),
    ],
)
def test_the_wrap_decides(old: str, new: str, expected: list[str]) -> None:
    assert loop(BETWEEN, WRAP.replace(old, new)) == expected


NET = """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.linear(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.first, self.head = Block(), nn.Linear(4, 2)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        {end}
"""


@pytest.mark.parametrize(
    ("end", "policy", "expected"),
    [
        ("return x", "ModuleWrapPolicy({Block})", ["kept"]),
        ("return self.head(x)", "always_wrap_policy", ["kept"]),
        ("return self.head(x), x.mean()", "always_wrap_policy", ["kept"]),
        ("return self.head(x)", "ModuleWrapPolicy({Block, nn.Linear})", ["kept"]),
        ("out = self.first(x)\n        return {'out': out}", "ModuleWrapPolicy({Block})", ["kept"]),
        ("return self.head(x)", "ModuleWrapPolicy({Block})", []),
        ("return self.head(x).float()", "always_wrap_policy", []),
        ("return torch.relu(x)", "ModuleWrapPolicy({Block})", []),
        ("x = x * 2\n        return x", "ModuleWrapPolicy({Block})", []),
    ],
)
def test_a_unit_that_ends_the_model_keeps_its_gradient(end: str, policy: str, expected: list[str]) -> None:
    wrap = WRAP.replace("FSDP(net", "FSDP(Net()").replace("always_wrap_policy", policy)
    assert loop(BETWEEN, wrap, NET.replace("{end}", end)) == expected


def test_several_optimizers_share_units() -> None:
    text = (
        HEAD
        + f"""
def train(batches):
    model = FSDP(nn.Linear(3, 3), {OPTIONS})
    first = torch.optim.SGD([p for p in model.parameters() if p.ndim == 1], lr=0.1)
    second = torch.optim.SGD([p for p in model.parameters() if p.ndim > 1], lr=0.1)
    for batch in batches:
        loss = model(batch).sum()
        first.zero_grad()
        loss.backward()
        first.step()
        second.step()
        second.zero_grad()
""".replace("auto_wrap_policy=always_wrap_policy, ", "")
    )
    assert [level for level, _ in levels(text)] == ["kept"]
    assert levels(text.replace("first.zero_grad()", "first.zero_grad()\n        second.zero_grad()", 1)) == []


def test_the_optimizer_of_another_model_is_left_alone() -> None:
    text = (
        HEAD
        + f"""
def train(one, two, batches):
    critic = {WRAP.replace("net", "one")}
    maker = {WRAP.replace("net", "two")}
    optim_c = torch.optim.Adam(critic.parameters())
    optim_m = torch.optim.Adam(maker.parameters())
    for batch in batches:
        fake = maker(batch)
        optim_c.zero_grad()
        (critic(batch) - critic(fake.detach())).mean().backward()
        optim_c.step()
        optim_m.zero_grad()
        critic(fake).mean().backward()
        optim_m.step()
"""
    )
    assert len(levels(text)) == 1
    (found,) = levels(text)
    assert text.splitlines()[found[1] - 1].strip().startswith("maker = ")


FUNCTIONS = {
    "a function that is given the loss": (
        """
def update(loss, optim):
    optim.zero_grad()
    loss.backward()
    optim.step()
""",
        "        update(model(batch).sum(), optimizer)",
    ),
    "a function that clears alone": (
        """
def clear(optim):
    optim.zero_grad()
""",
        "        loss = model(batch).sum()\n        clear(optimizer)\n        loss.backward()",
    ),
    "a function that runs the backward": (
        """
def back(loss):
    loss.backward()
""",
        "        loss = model(batch).sum()\n        optimizer.zero_grad()\n        back(loss)",
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_functions_are_followed(name: str) -> None:
    function, body = FUNCTIONS[name]
    source = HEAD + function + LOOP.format(wrap=WRAP, body=body)
    assert len(levels(source)) == 1
    above = source.replace("        loss = model(batch)", "        optimizer.zero_grad()\n        loss = model(batch)")
    if "def back" in function:
        assert levels(above) == []


def test_methods_of_an_object() -> None:
    source = (
        HEAD
        + f"""
class Painter:
    def __init__(self, net):
        self.net = {WRAP}
        self.optimizer = torch.optim.Adam(self.net.parameters())

    def forward(self):
        self.fake = self.net(self.real)

    def backward_G(self):
        self.loss = self.fake.square().mean()
        self.loss.backward()

    def optimize(self):
        self.forward()
        self.optimizer.zero_grad()
        self.backward_G()
        self.optimizer.step()
"""
    )
    assert len(levels(source)) == 1
    usual = source.replace(
        "        self.forward()\n        self.optimizer.zero_grad()\n",
        "        self.optimizer.zero_grad()\n        self.forward()\n",
    )
    assert levels(usual) == []


FIELDS = """
from dataclasses import dataclass

@dataclass
class Settings:
    strategy: ShardingStrategy = ShardingStrategy.{name}
    lr: float = 0.1

def train(net, batches, settings):
    options = dict(sharding_strategy=settings.strategy, auto_wrap_policy=always_wrap_policy, use_orig_params=True)
    model = FSDP(net, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr)
    for batch in batches:
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

train(None, [], Settings({given}))
"""


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("SHARD_GRAD_OP", "", ["kept"]),
        ("FULL_SHARD", "", []),
        ("FULL_SHARD", "strategy=ShardingStrategy.SHARD_GRAD_OP", ["kept"]),
        ("SHARD_GRAD_OP", "**read()", ["kept"]),
    ],
)
def test_a_field_of_a_dataclass_is_followed(name: str, given: str, expected: list[str]) -> None:
    source = HEAD + FIELDS.format(name=name, given=given)
    assert [level for level, _ in levels(source)] == expected


def test_a_model_of_another_file() -> None:
    wrap = WRAP.replace("FSDP(net", "FSDP(Net().to(0)").replace("always_wrap_policy", "ModuleWrapPolicy({Block})")
    source = HEAD + "from net import Block, Net\n" + LOOP.format(wrap=wrap, body=textwrap.indent(BETWEEN, " " * 8))
    imports = "from torch import nn\n"
    assert levels(source, net=imports + NET.replace("{end}", "return self.head(x)")) == []
    assert len(levels(source, net=imports + NET.replace("{end}", "return self.first(x)"))) == 1


def test_a_policy_of_ones_own_may_name_anything() -> None:
    policy = "\ndef policy(module, recurse, nonwrapped_numel):\n    return recurse or nonwrapped_numel > 9\n"
    wrap = WRAP.replace("FSDP(net", "FSDP(Net()").replace("always_wrap_policy", "policy")
    assert loop(BETWEEN, wrap, NET.replace("{end}", "return self.head(x)") + policy) == ["kept"]
