"""What gives an argument back gives the model: to what is followed by name, and to what is interpreted."""

from __future__ import annotations

import pytest

from fsdp_rules.project.passing_on import PASSING_ON
from fsdp_rules.values.library import table
from tests.rules.helpers import findings

SAVE = "def save(path, network):\n    return network.state_dict()\n"
HOLD = """
{imported}
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from example import save

class Holder:
    def __init__(self, net):
        sharded = FSDP(net, use_orig_params=True)
        self.net = {given}

def run(net, path):
    holder = Holder(net)
    save(path, holder.net)
"""


@pytest.mark.parametrize(
    ("imported", "given"),
    [
        ("import typing as t", "t.cast(nn.Module, sharded)"),
        ("from typing import cast as seen_as", "seen_as('nn.Module', val=sharded)"),
        ("from typing_extensions import cast", "cast(nn.Linear, sharded).train()"),
        ("from typing_extensions import assert_type", "assert_type(sharded, FSDP)"),
        ("import weakref", "weakref.proxy(sharded)"),
        ("from copy import copy", "copy(sharded)"),
        ("import torch", "torch.compile(model=sharded)"),
    ],
)
def test_what_gives_the_model_back_gives_the_model(imported: str, given: str) -> None:
    found = findings(SAVE, hold=HOLD.format(imported=imported, given=given))
    assert [one.rule for one in found] == ["FSDP309"]


def test_the_type_of_a_cast_is_no_model() -> None:
    hold = HOLD.format(imported="from typing import cast", given="cast(sharded, net)")
    assert [one.rule for one in findings(SAVE, hold=hold)] == []


def test_no_function_is_in_both_tables() -> None:
    assert PASSING_ON.keys().isdisjoint(table("functions"))
