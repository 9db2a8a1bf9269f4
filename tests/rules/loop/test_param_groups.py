"""FSDP213: parameter groups by number of dimensions."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_noop, findings

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def levels(source: str) -> list[str]:
    return [found.level.value for found in findings(source) if found.rule == "FSDP213"]


def test_models_that_are_never_wrapped_are_left_alone() -> None:
    check_noop("matrices = [p for p in model.parameters() if p.ndim >= 2]\n")


@pytest.mark.parametrize(
    "use",
    [
        "def build(model):\n    big = [p for p in model.parameters() if p.ndim > 1]\n    model = FSDP(model)\n",
        "model = FSDP(model)\nwith FSDP.summon_full_params(model):\n    print([p.dim() for p in model.parameters()])\n",
        "model = FSDP(model)\nprint([x.ndim for x in batches])\n",
    ],
)
def test_full_shapes_are_left_alone(use: str) -> None:
    assert levels(WRAP + use) == []


@pytest.mark.parametrize("asked", ["p.ndim", "p.dim()", "p.ndimension()", "len(p.shape)", "len(p.size())"])
def test_questions_for_the_dimensions(asked: str) -> None:
    source = f"model = FSDP(model)\nbig = [p for n, p in model.named_parameters() if {asked} > 1]\n"
    assert levels(WRAP + source) == ["manual"]


def test_through_dictionaries() -> None:
    source = """
def groups(model):
    model = FSDP(model)
    found = {n: p for n, p in model.named_parameters()}
    found = {n: p for n, p in found.items() if p.requires_grad}
    return [p for p in found.values() if p.dim() < 2]
"""
    assert levels(WRAP + source) == ["manual"]


MODEL = """
import torch

class Net(torch.nn.Module):
    def configure_optimizers(self):
        found = {n: p for n, p in self.named_parameters()}
        return torch.optim.AdamW([p for p in found.values() if p.dim() >= 2])
"""


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        ("net = FSDP(Net())\noptimizer = net.configure_optimizers()\n", ["manual"]),
        ("net = FSDP(Net())\noptimizer = net.module.configure_optimizers()\n", ["manual"]),
        (
            "def build(net):\n    optimizer = net.configure_optimizers()\n    net = FSDP(net)\n    return optimizer\n",
            [],
        ),
        ("net = FSDP(Net())\noptimizer = other.configure_optimizers()\n", []),
    ],
)
def test_a_method_of_the_model_in_another_file(main: str, expected: list[str]) -> None:
    found = findings(MODEL, main=f"{WRAP}from example import Net\n{main}")
    assert [one.level.value for one in found if one.rule == "FSDP213"] == expected


@pytest.mark.parametrize(
    ("test", "said"),
    [("p.ndim > 0", 0), ("p.dim() < 1", 0), ("len(p.shape) == 0", 0), ("p.ndim != 1", 1), ("p.ndim > 1", 1)],
)
def test_tests_with_one_answer_for_all_parameters(test: str, said: int) -> None:
    source = f"{WRAP}model = FSDP(net)\nfor p in model.parameters():\n    if {test}:\n        raise ValueError(p)\n"
    assert len([one for one in findings(source) if one.rule == "FSDP213"]) == said
