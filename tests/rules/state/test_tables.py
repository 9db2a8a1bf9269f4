"""Kinds of state and their configurations that a program takes from tables, or computes."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings
from tests.rules.state.test_optim_state_dict import output

IMPORTS = """
import torch
from torch.distributed.fsdp import (
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalStateDictConfig,
    ShardedStateDictConfig,
    StateDictType,
)
"""
ROWS = """
TABLE = {
    "full": (StateDictType.FULL_STATE_DICT, FullStateDictConfig(), FullOptimStateDictConfig()),
    "other": (StateDictType.%s_STATE_DICT, ShardedStateDictConfig(), None),
}
"""
NAMED = """
OTHER = StateDictType.%s_STATE_DICT
KINDS = [StateDictType.FULL_STATE_DICT, OTHER]
"""
SAVE = """
def save(net, optim, how, path):
    model = FSDP(net)
    %s
    with FSDP.state_dict_type(model, kind%s):
        state = model.state_dict()
    torch.save(state, path)
"""


@pytest.mark.parametrize(
    ("table", "taken", "configs"),
    [
        (ROWS, "kind, config, optim_config = TABLE[how]", ", config, optim_config"),
        (ROWS, "row = TABLE[how]\n    kind = row[0]", ", row[1]"),
        (NAMED, "kind = KINDS[how]", ""),
        (NAMED, "kinds = KINDS\n    kind = kinds[how]", ""),
    ],
)
def test_a_kind_that_may_be_local_is_left_to_a_human(table: str, taken: str, configs: str) -> None:
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n" + IMPORTS
    levels = {
        other: {found.level.value for found in findings(source + table % other + SAVE % (taken, configs))}
        for other in ("LOCAL", "SHARDED")
    }
    assert "manual" in levels["LOCAL"]
    assert "manual" not in levels["SHARDED"]


@pytest.mark.parametrize("given", ["config", "self_config.state"])
def test_a_state_is_offloaded_where_rank_0_alone_wants_it(given: str) -> None:
    """FullOptimStateDictConfig() offloads on every rank, where FSDP2 would leave all but rank 0 without a state."""
    text = output(
        f"""{IMPORTS}
def save(net, optim, self_config, config, rank):
    model = FSDP(net)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, None, {given}):
        state = FSDP.optim_state_dict(model, optim)
    torch.save(state, f"{{rank}}.pt")
"""
    )
    both = f'getattr({given}, "offload_to_cpu", False) and getattr({given}, "rank0_only", False)'
    assert f"cpu_offload={both}".replace(" ", "") in "".join(text.split())


@pytest.mark.parametrize("asked", ["torch.cuda.is_available()", "config.offload"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_computed_offload_is_kept_in_every_form(asked: str, nested: bool) -> None:
    taken = (
        "torch.save(FSDP.optim_state_dict(model, optim), str(rank))"
        if nested
        else ("optim_state = FSDP.optim_state_dict(model, optim)")
    )
    text = output(
        f"""{IMPORTS}
def save(net, optim, config, rank):
    model = FSDP(net)
    with FSDP.state_dict_type(
        model,
        StateDictType.FULL_STATE_DICT,
        FullStateDictConfig(offload_to_cpu={asked}),
        FullOptimStateDictConfig(offload_to_cpu={asked}),
    ):
        state = model.state_dict()
        {taken}
    torch.save(state, f"{{rank}}.pt")
    return state
"""
    )
    assert f"name: tensor.cpu() if {asked} else tensor\n" in text
    assert f"    if {asked}:\n        for " in text
    assert "cpu_offload" not in text
