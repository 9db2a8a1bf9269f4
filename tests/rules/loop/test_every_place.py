"""Several places of one kind in one function: each is named, and stays named when another one is mended."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

HEAD = (
    "import torch\nimport torch.distributed as dist\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
)
#: A function with two places, and what the first, and the second, of them becomes once it is mended.
PAIRS = {
    "two collectives": (
        "FSDP222",
        "def step(net):\n    model = FSDP(net)\n    for p in model.parameters():\n        dist.all_reduce(p.grad)\n"
        "    for q in model.parameters():\n        dist.all_reduce(q.grad)\n",
        {"all_reduce(p.grad)": "all_reduce(p.grad.to_local())", "all_reduce(q.grad)": "all_reduce(q.grad.to_local())"},
    ),
    "two methods": (
        "FSDP222",
        "class Job:\n    def __init__(self, net):\n        self.net = FSDP(net)\n\n    def one(self, total):\n"
        "        for p in self.net.parameters():\n            total += p.grad.sum()\n"
        "            total += p.grad.abs()\n",
        {"p.grad.sum()": "p.grad.to_local().sum()", "p.grad.abs()": "p.grad.full_tensor().abs()"},
    ),
    "two norms": (
        "FSDP216",
        "def step(net):\n    model = FSDP(net)\n    one = sum(p.grad.norm() ** 2 for p in model.parameters())\n"
        "    two = sum(q.grad.norm() ** 4 for q in model.parameters())\n    dist.all_reduce(one)\n"
        "    dist.all_reduce(two)\n",
        {"p.grad.norm": "p.grad.to_local().norm", "q.grad.norm": "q.grad.to_local().norm"},
    ),
    "a norm and a collective": (
        "FSDP2",
        "def step(net):\n    model = FSDP(net)\n    one = sum(p.grad.norm() ** 2 for p in model.parameters())\n"
        "    dist.all_reduce(one)\n    for q in model.parameters():\n        dist.all_reduce(q.grad)\n",
        {"p.grad.norm": "p.grad.to_local().norm", "all_reduce(q.grad)": "all_reduce(q.grad.to_local())"},
    ),
    "two numbers of parameters": (
        "FSDP227",
        "def step(net):\n    model = FSDP(net)\n    one = sum(p.abs().sum() for p in model.parameters())\n"
        "    two = sum(q.pow(2).sum() for q in model.parameters())\n    return one / two\n",
        {"p.abs": "p.to_local().abs", "q.pow": "q.to_local().pow"},
    ),
    "an optimizer's collectives": (
        "FSDP222",
        "class Own(torch.optim.Optimizer):\n    def step(self):\n        for g in self.param_groups:\n"
        "            for p in g['params']:\n                dist.all_reduce(p.grad.norm())\n"
        "                dist.all_reduce(p.grad.max())\n\ndef build(net):\n    return Own(FSDP(net).parameters())\n",
        {"p.grad.norm": "p.grad.to_local().norm", "p.grad.max": "p.grad.to_local().max"},
    ),
}


def lines(rule: str, source: str) -> set[int]:
    said = findings(HEAD + source)
    return {one.line for one in said if one.rule.startswith(rule) and one.level.value == "manual"}


def _line(source: str, text: str) -> int:
    return next(at for at, line in enumerate((HEAD + source).splitlines(), 1) if text in line)


@pytest.mark.parametrize("pair", PAIRS)
def test_each_place_is_named_until_it_is_mended(pair: str) -> None:
    rule, source, cures = PAIRS[pair]
    first, second = cures
    assert lines(rule, source) == {_line(source, first), _line(source, second)}
    assert lines(rule, source.replace(first, cures[first])) == {_line(source, second)}
    assert lines(rule, source.replace(second, cures[second])) == {_line(source, first)}
    assert lines(rule, source.replace(first, cures[first]).replace(second, cures[second])) == set()


#: Gradients that a function makes plain ones in a line further down, or asks for their class.
AWARE = (
    "grads = [p.grad for p in model.parameters()]\n    for g in grads:\n        dist.all_reduce(g.to_local())",
    "parts = []\n    for p in model.parameters():\n        parts.append(p.grad)\n"
    "    total = sum(g.full_tensor().norm() for g in parts)\n    dist.all_reduce(total)",
    "for p in model.parameters():\n        if isinstance(p.grad, DTensor):\n            continue\n"
    "        dist.all_reduce(p.grad)",
    "for p in model.parameters():\n        g = p.grad\n        if hasattr(g, 'to_local'):\n"
    "            g = g.to_local()\n        dist.all_reduce(g)",
    "for p in model.parameters():\n        g = p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad\n"
    "        dist.all_reduce(g)",
)


@pytest.mark.parametrize("body", AWARE)
def test_what_handles_dtensors_has_no_finding(body: str) -> None:
    source = f"from torch.distributed.tensor import DTensor\n\ndef step(net):\n    model = FSDP(net)\n    {body}\n"
    assert lines("FSDP216", source) | lines("FSDP222", source) == set()


@pytest.mark.parametrize(
    ("test", "levels"),
    [
        ("isinstance(g, DTensor):\n            continue", ["review"]),
        ("g is None or isinstance(g, DTensor):\n            continue", ["review"]),
        ("not isinstance(g, DTensor):\n            continue", []),
        ("isinstance(g, DTensor):\n            total += g.full_tensor().norm()\n            continue", []),
    ],
)
def test_gradients_that_a_test_for_dtensors_leaves_out(test: str, levels: list[str]) -> None:
    source = (
        "from torch.distributed.tensor import DTensor\n\ndef step(net):\n    model = FSDP(net)\n    total = 0.0\n"
        f"    for p in model.parameters():\n        g = p.grad\n        if {test}\n"
        "        total += (g.to_local() if hasattr(g, 'to_local') else g).norm()\n"
    )
    assert [one.level.value for one in findings(HEAD + source) if one.rule == "FSDP222"] == levels
