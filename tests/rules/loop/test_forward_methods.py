"""Rule FSDP210: entry points of a wrapped model besides its call."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_noop, check_rewrites, findings, rewrite

WRAP = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def wrap(model):
    return FSDP(model)
"""
HEAD = "import inspect\n\nfrom w import wrap\n\n\ndef step(net, x, hook):\n    model = wrap(net)\n    "


def levels(source: str, **others: str) -> list[str]:
    return [found.level.value for found in findings(source, **others) if found.rule == "FSDP210"]


@pytest.mark.parametrize(
    "line",
    [
        "net.forward(x)",
        "net.generate(x)",
        "super().forward(x)",
        "self.forward(x)",
        "model.eval()",
        "model.parameters()",
        "model.config.generate",
        "model.gradient_checkpointing_enable()",
    ],
)
def test_noop(line: str) -> None:
    check_noop(HEAD + line + "\n", w=WRAP)


def test_forward_called() -> None:
    before = HEAD + "return model.forward(\n        x,  # why\n        y=hook(model.forward(x)),\n    )\n"
    check_rewrites(before, before.replace("model.forward", "model"), w=WRAP)
    assert levels(before, w=WRAP) == ["safe", "safe"]
    other = "\nfrom w import wrap\n\ndef make(state, net):\n    state.model = wrap(net)\n"
    maybe = "def step(trainer, x):\n    return trainer.model.forward(x)\n"
    check_rewrites(maybe, maybe.replace("model.forward", "model"), w=WRAP, o=other)
    assert levels(maybe, w=WRAP, o=other) == ["review"]


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("hook(model.forward, x)", "manual"),
        ("model.forward = hook", "manual"),
        ("inspect.signature(model.forward)", "review"),
        ("model.forward.__name__", "review"),
    ],
)
def test_forward_as_a_value(line: str, level: str) -> None:
    assert levels(HEAD + line + "\n", w=WRAP) == [level]


@pytest.mark.parametrize("name", ["generate", "encode_text", "get_text_features", "compute_loss", "validation_step"])
def test_methods_wrapped_elsewhere(name: str) -> None:
    source = HEAD + f"return model.{name}(x)\n"
    assert levels(source, w=WRAP) == ["review"]
    (message,) = (found.message for found in findings(source, w=WRAP) if found.rule == "FSDP210")
    assert "units before the first call, save or load (FSDP1 casts there)" in message
    check_rewrites(source, source, w=WRAP)


def test_registered_once_behind_the_wrapping() -> None:
    before = """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    kept = fully_shard, register_fsdp_forward_method

    class Trainer:
        def __init__(self, net, shard):
            if shard:
                self.model = FSDP(net)

        def sample(self, x):
            return self.model.generate(x), self.model.encode(x)

        def score(self, x):
            return self.model.generate(x)
    """
    after = """
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    kept = fully_shard, register_fsdp_forward_method

    class Trainer:
        def __init__(self, net, shard):
            if shard:
                self.model = fully_shard(net)
                register_fsdp_forward_method(self.model, "generate")
                register_fsdp_forward_method(self.model, "encode")

        def sample(self, x):
            return self.model.generate(x), self.model.encode(x)

        def score(self, x):
            return self.model.generate(x)
    """
    check_rewrites(before, after)
    assert levels(before) == ["review", "review"]


def test_under_summon_full_params() -> None:
    source = WRAP + (
        "\ndef sample(net, x):\n    model = FSDP(net)\n    with FSDP.summon_full_params(model, recurse=False):\n"
        "        return model.generate(x)\n"
    )
    assert levels(source) == ["info"]
    assert "summon_full_params" in next(found.message for found in findings(source) if found.rule == "FSDP210")
    later = WRAP + (
        "\ndef sample(net, x):\n    model = FSDP(net)\n    context = lambda: FSDP.summon_full_params(model)\n"
        "    with context():\n        return model.generate(x)\n"
    )
    assert levels(later) == ["info"]


NET = """
import torch.nn as nn
import torch

class Base(nn.Module):
    def project(self, x):
        return self.run(x)

    def run(self, x):
        return torch.utils.checkpoint.checkpoint(self.enc, x, use_reentrant=False)

    def describe(self):
        return str(len(self.layers))

class Angles(nn.Module):
    def extend(self, length):
        self.length = length

class Net(Base):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(4, 4)
        self.layers = nn.ModuleList([nn.Linear(4, 4)])
        self.angles = Angles()

    def forward(self, x):
        return self.enc(x)

    def both(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.describe(), x

    def set_length(self, length):
        self.angles.extend(length)
"""
CASTING = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from net import Net

def build(policy):
    return FSDP(Net(), auto_wrap_policy=policy, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))
"""
USES = {
    "a trainer's attribute": """
from build import build

class Trainer:
    def __init__(self, policy):
        self.model = build(policy)

    def step(self, x):
        return self.model.{name}(x)

Trainer(None).step(1)
""",
    "an argument": """
import build

def loss(one, model):
    return model.module.{name}(one).sum()

def main(loader):
    made = build.build(None)
    return [loss(one, model=made) for one in loader]

main([])
""",
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(
    ("name", "said"), [("project", ["review"]), ("both", ["review"]), ("describe", []), ("set_length", [])]
)
def test_methods_of_the_tree_are_judged_by_what_they_run(use: str, name: str, said: list[str]) -> None:
    assert levels(use.format(name=name), net=NET, build=CASTING) == said


def test_methods_that_differ_in_nothing_but_their_names_have_one_text() -> None:
    calls = "    return model.project(1), model.both(1)\n"
    use = f"from build import build\n\ndef step():\n    model = build(None)\n{calls}"
    said = [one for one in findings(use, net=NET, build=CASTING) if one.rule == "FSDP210"]
    assert len(said) == 2 and len({(one.message, one.advice) for one in said}) == 1


def test_units_that_begin_without_a_cast_are_not_reported() -> None:
    use = USES["an argument"].format(name="project")
    assert levels(use, net=NET, build=CASTING.replace("MixedPrecision(param_dtype=torch.bfloat16)", "None")) == []
    assert levels(use, net=NET, build=CASTING) == ["review"]


def test_a_method_that_runs_units_is_registered_where_the_model_is_wrapped() -> None:
    source = CASTING + (
        "\ndef train(loader, policy):\n"
        "    model = FSDP(Net(), auto_wrap_policy=policy, mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))\n"
        "    return [model.both(x) for x in loader]\n"
    )
    result = rewrite(source, net=NET)
    assert isinstance(result, Changed)
    assert 'register_fsdp_forward_method(model, "both")' in result.source.decode()
