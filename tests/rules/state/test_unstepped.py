"""FSDP304: states of optimizers that are taken before the first step, which torch makes for them and counts."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, FullStateDictConfig, StateDictType

class Keeper:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def take(self):
        with FSDP.state_dict_type(self.model, StateDictType.{kind}):
            return FSDP.optim_state_dict(self.model, self.optimizer)

def one(model, optimizer, x):
    model(x).sum().backward()
    optimizer.step()

def train(net, batches, scaler):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
    keeper, kept = Keeper(model, optimizer), []
{body}
    return kept
"""
TAKE, STEP = "kept.append(keeper.take())", "one(model, optimizer, x)"
FIRST = {
    "above the loop": f"    {TAKE}\n    for x in batches:\n        {STEP}",
    "at the head of the loop": "    for n, x in enumerate(batches):\n        if n % 3 == 0:\n"
    f"            {TAKE}\n        {STEP}",
    "above a scaler's step": f"    {TAKE}\n    for x in batches:\n        scaler.step(optimizer)",
    "both": f"    {TAKE}\n    for x in batches:\n        {STEP}\n        keeper.take()",
}
LATER = {
    "behind the loop": f"    for x in batches:\n        {STEP}\n    {TAKE}",
    "at the end of the loop": f"    for x in batches:\n        {STEP}\n        {TAKE}",
    "behind a scaler's step": f"    for x in batches:\n        scaler.step(optimizer)\n        {TAKE}",
    "stepped elsewhere": f"    {TAKE}",
}


def written(body: str, kind: str = "FULL_STATE_DICT", optimizer: str = "Adam") -> str:
    result = rewrite(HEAD.format(body=body, kind=kind, optimizer=optimizer).encode())
    assert isinstance(result, Changed)
    return result.source.decode()


@pytest.mark.parametrize("body", FIRST.values(), ids=FIRST)
def test_the_helper_leaves_the_optimizer_as_it_is(body: str) -> None:
    assert "fsdp_compat.optim_state_dict(self.model, self.optimizer)" in written(body)
    sharded = written(body, "SHARDED_STATE_DICT")
    assert "fsdp_compat.optim_state_dict(self.model, self.optimizer, full=False)" in sharded
    # Without momentum nothing is counted.
    assert "fsdp_compat.optim_state_dict" not in written(body, optimizer="SGD")


@pytest.mark.parametrize("body", LATER.values(), ids=LATER)
def test_after_a_step_torch_takes_it(body: str) -> None:
    assert "fsdp_compat.optim_state_dict" not in written(body)


OWN = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

class Plain(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    def step(self{closure}):
        pass

class Below(Plain):
    pass

def resume(net, path):
    model = FSDP(net, use_orig_params=True)
    optimizer = {made}(model.parameters(), lr=0.1)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = FSDP.optim_state_dict_to_load(model, optimizer, torch.load(path))
    optimizer.load_state_dict(state)
    for x in range(3):
        optimizer.step()
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return FSDP.optim_state_dict(model, optimizer)
"""


@pytest.mark.parametrize("made", ["Plain", "Below"])
def test_a_step_without_closure_is_not_called_by_torch(made: str) -> None:
    def text(closure: str) -> str:
        result = rewrite(OWN.format(made=made, closure=closure).encode())
        assert isinstance(result, Changed)
        return result.source.decode()

    assert "fsdp_compat.optim_state_dict_to_load(model, optimizer, torch.load(path))" in text("")
    assert "fsdp_compat.optim_state_dict(model, optimizer)" in text("")
    for closure in (", closure=None", ", *args", ", **options"):
        assert "fsdp_compat.optim_state_dict" not in text(closure)


LOADED = """\
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
import torch

def resume(net, batches):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters())
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {{"optim": FSDP.optim_state_dict(model, optimizer)}}
        dcp.load({given}, checkpoint_id="last")
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state["optim"]))
    for x in batches:
        model(x).sum().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("given", ["state", '{"optim": state["optim"]}', "dict(state)"])
def test_what_a_checkpoint_is_loaded_into_is_the_state_that_torch_makes(given: str) -> None:
    result = rewrite(LOADED.format(given=given).encode())
    assert isinstance(result, Changed)
    assert "get_optimizer_state_dict(model, optimizer)" in result.source.decode()


HOOKED = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

def watch(optimizer):
    optimizer.{register}(lambda *given: print(given))

def resume(net, path):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    watch(optimizer)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        state = FSDP.optim_state_dict_to_load(model, optimizer, torch.load(path))
    optimizer.load_state_dict(state)
"""


@pytest.mark.parametrize(
    "register", ["register_step_pre_hook", "register_step_post_hook", "register_state_dict_pre_hook"]
)
def test_hooks_of_a_step_see_none_that_torch_makes(register: str) -> None:
    result = rewrite(HOOKED.format(register=register).encode())
    assert isinstance(result, Changed)
    helper = b"fsdp_compat.optim_state_dict_to_load(model, optimizer, torch.load(path))"
    assert (helper in result.source) == ("step" in register)


def test_the_advice_for_a_state_left_to_the_reader_names_the_helper_before_the_first_step() -> None:
    source = """
from tools import entered
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(net, optimizer):
    model = FSDP(net)
    with entered(model):
        return FSDP.optim_state_dict(model, optimizer)
"""
    tools = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

def entered(model, kinds=(StateDictType.FULL_STATE_DICT,)):
    for kind in kinds:
        FSDP.set_state_dict_type(model, kind)
    return FSDP.state_dict_type(model, kinds[0])
"""
    (found,) = (entry for entry in findings(source, tools=tools) if entry.rule == "FSDP304")
    assert found.level.value == "manual" and "Before the first step, use fsdp_compat.optim_state_dict" in found.advice
