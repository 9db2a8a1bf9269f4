"""FSDP220: parts of a sharded model, and models that a call gives."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

HEAD = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

CACHE = {}


"""
MAKERS = {
    "cache": 'def make(net):\n    if "m" not in CACHE:\n        CACHE["m"] = FSDP(net)\n    return CACHE["m"]\n',
    "owner": "class Owner:\n    def __init__(self, net):\n        self.inner = FSDP(net)\n\n\nOWNER = Owner(NET)\n\n\n"
    "def make(net):\n    return OWNER.inner\n",
    "static": "MODEL = FSDP(NET)\n\n\ndef make(net):\n    return MODEL\n",
}
USES = {
    "zero_grad": "{}.zero_grad()",
    "none": "for p in {}.parameters():\n        p.grad = None",
    "values": "print([p.sum() for p in {}.parameters()])",
    "weight": "print({}.weight.sum())",
}
PARTS = ("", ".brain", ".brain.head", ".layers[0]")


def keeping(source: str) -> str:
    """The source with wraps that keep the original parameters, which FSDP1 shows as shards after a forward."""
    return source.replace("FSDP(net)", "FSDP(net, use_orig_params=True)").replace(
        "FSDP(NET)", "FSDP(NET, use_orig_params=True)"
    )


def said(body: str, maker: str = MAKERS["cache"]) -> list[str]:
    source = keeping(f"{HEAD}{maker}\n\ndef use(net, x, optimizer):\n    {body}\n")
    return [found.level.value for found in findings(source) if found.rule == "FSDP220"]


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("use", USES)
def test_what_a_call_gives_is_left_to_a_person(maker: str, part: str, use: str) -> None:
    line = USES[use].format(f"make(net){part}")
    assert said(f"make(net)(x)\n    {line}", MAKERS[maker]) == ["manual"]
    cleared = use in ("zero_grad", "none")
    assert said(line, MAKERS[maker]) == (["review"] if cleared else [])
    assert said(f"make(net)(x).sum().backward()\n    {line}", MAKERS[maker]) == []


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("use", USES)
def test_a_part_of_a_named_model_has_the_whole_resharded(part: str, use: str) -> None:
    source = f"{HEAD}def use(net, x):\n    model = FSDP(net)\n    model(x)\n    {USES[use].format(f'model{part}')}\n"
    result = rewrite(keeping(source))
    assert isinstance(result, Changed)
    assert "    for unit in model.modules():\n" in result.source.decode()


@pytest.mark.parametrize("part", PARTS)
def test_one_weight_of_flat_parameters_is_whole_after_a_forward_under_both(part: str) -> None:
    source = f"{HEAD}def use(net, x):\n    model = FSDP(net)\n    model(x)\n    print(model{part}.weight.sum())\n"
    assert not [one for one in findings(source) if one.rule == "FSDP220"]


@pytest.mark.parametrize(
    "body",
    [
        "optimizer.zero_grad()",
        "make(net)(x)\n    optimizer.zero_grad()",
        "make(net)(x)\n    make(net).optimizer.zero_grad()",
        "make(net)(x)\n    make(net).brain.eval()",
        "make(net)(x)\n    other(net).zero_grad()",
        "make(net)(x)\n    other(net).brain.zero_grad()",
        "make(net)(x)\n    print(sum(p.numel() for p in make(net).brain.parameters()))",
    ],
)
def test_others_are_left(body: str) -> None:
    assert said(body) == []


@pytest.mark.parametrize("name", ["optimizer", "opt", "model_optim", "engine", "inner.optimizer"])
def test_an_optimizer_beside_the_model_is_none_of_its_parts(name: str) -> None:
    source = f"""{HEAD}class Net(Base):
    def step(self, x):
        self(x)
        self.{name}.zero_grad()


def use():
    model = FSDP(Net())
    model(1)
    model.step(1)
    model.{name}.zero_grad()
"""
    assert [found.level.value for found in findings(source) if found.rule == "FSDP220"] == []
