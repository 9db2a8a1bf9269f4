"""Tests for ``nn.Module``, which FSDP1's wrapper is as well as what it wraps."""

from __future__ import annotations

import libcst as cst
import pytest

from fsdp_rules.model.sharded import sharded_by_code
from fsdp_rules.project.flow import Certainty
from tests.rules.projects import file_of

PROGRAM = """
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def groups(model):
    if {test}:
        return list(model.parameters())
    return [p for _, p in model["model"].named_parameters()]


def main(net):
    return groups(FSDP(net))
"""


@pytest.mark.parametrize(
    ("test", "certainty"),
    [
        ("isinstance(model, torch.nn.Module)", Certainty.YES),
        ("isinstance(model, (nn.Module, list))", Certainty.YES),
        ("isinstance(model, nn.Linear)", Certainty.NO),
    ],
)
def test_a_module_may_be_the_sharded_one(test: str, certainty: Certainty) -> None:
    file = file_of(PROGRAM.format(test=test))
    (name,) = [node for node in file.nodes(cst.Name) if node.value == "model" and file.span(node).line == 9]
    assert sharded_by_code(name, file).certainty is certainty
