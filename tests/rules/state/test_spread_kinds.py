"""FSDP301: kinds of state that ``*`` spreads from a tuple, and FSDP305: states that are read after they were loaded."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

SOURCE = """\
import torch
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

CONFIGS = (FullStateDictConfig(rank0_only=True, offload_to_cpu=True), FullOptimStateDictConfig(rank0_only=True))

def save(net, train, path, flag):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    kind = (StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu={0}))
    {1}
    with FSDP.state_dict_type(model, {2}):
        state = model.state_dict()
        optim = FSDP.optim_state_dict(model, optimizer)
    torch.save([state, optim], path)
    return flag
"""


@pytest.mark.parametrize("given", ["*kind", "StateDictType.FULL_STATE_DICT, *CONFIGS"])
def test_a_tuple_that_is_written_in_sight(given: str) -> None:
    result = rewrite(SOURCE.format("True", "", given).encode())
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert "cpu_offload=True" in text or "tensor.cpu()" in text
    assert "get_model_state_dict(" in text and "get_optimizer_state_dict(" in text


@pytest.mark.parametrize(
    ("offload", "between", "given"),
    [("flag", "flag = not flag", "*kind"), ("True", "kind = kind[:1]", "*kind"), ("True", "", "*train.kinds")],
)
def test_a_tuple_that_is_another_one_where_it_is_spread(offload: str, between: str, given: str) -> None:
    found = findings(SOURCE.format(offload, between, given))
    assert any(one.rule == "FSDP301" and one.level.value == "manual" for one in found)


LOADED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

def run(net, train, path):
    kind = (StateDictType.FULL_STATE_DICT,)
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    with FSDP.state_dict_type(model, *kind):
        state = FSDP.optim_state_dict(model, optimizer)
        {before}
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state))
    train(model, optimizer)
    {after}
"""


@pytest.mark.parametrize(
    "after",
    ["torch.save(state, path)", 'torch.save({"a": state}, path)', 'return state["state"]', 'print(state["state"])'],
)
def test_a_state_that_is_read_after_more_steps(after: str) -> None:
    def said(before: str, after: str) -> bool:
        return any("keeps counting steps" in one.message for one in findings(LOADED.format(before=before, after=after)))

    assert said("pass", after)
    assert not said(after.replace("return ", "x = "), "return model")
