"""A setting of the kind of state stays where a call that it governs has no FSDP2 form: with it, all of the block."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

HEAD = """import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel as FSDP, StateDictType

CONFIG = FullStateDictConfig(rank0_only=True, offload_to_cpu=True)

def build(net):
    return FSDP(net, process_group=dist.new_group([0, 1]))

"""
SAVE = """def save(net, optimizer):
    model = build(net)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, CONFIG):
        state = model.state_dict()
        optim = FSDP.optim_state_dict(model, optimizer)
    return state, optim
"""
LOAD = """def load(net, state):
    model = build(net)
    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT)
    model.load_state_dict(state)
"""
#: A load that one rank alone reaches.
LOAD_ON_ONE = LOAD.replace("    model.load", "    if dist.get_rank() == 0:\n        model.load")


@pytest.mark.parametrize(("program", "rules"), [(SAVE, {"FSDP301"}), (LOAD_ON_ONE, {"FSDP302", "FSDP309"})])
def test_all_of_it_stays_for_a_human(program: str, rules: set[str]) -> None:
    result = rewrite(HEAD + program)
    assert isinstance(result, Changed)
    after = "\n".join(line for line in result.source.decode().split("\n") if "TODO(fsdp-migrate" not in line)
    assert program in after
    assert {found.rule for found in result.findings if found.level.value == "manual"} == rules
    again = rewrite(result.source.decode())
    assert {found.rule for found in again.findings if found.level.value == "manual"} >= rules  # type: ignore[union-attr]


@pytest.mark.parametrize("program", [SAVE, LOAD])
def test_without_a_subgroup_it_goes(program: str) -> None:
    result = rewrite(HEAD.replace(", process_group=dist.new_group([0, 1])", "") + program)
    assert isinstance(result, Changed)
    assert b"state_dict_type" not in result.source
    assert [found.rule for found in result.findings if found.level.value == "manual"] == []


@pytest.mark.parametrize("program", [SAVE, LOAD])
def test_the_subgroup_of_another_model_of_the_file(program: str) -> None:
    """What is known of the one wrap that a model comes from counts, whatever group another model has."""
    other = "\ndef other(net):\n    net = FSDP(net, use_orig_params=True)\n    return net\n\n"
    source = HEAD + other + program.replace("model = build(net)", "model = other(net)")
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"state_dict_type" not in result.source
    assert [found.rule for found in result.findings if found.level.value == "manual"] == []


@pytest.mark.parametrize("wrap", ["FSDP(net, **more)", "shard(net)", "FSDP(net, GROUP)", "FSDP(net, device_mesh=mesh)"])
def test_a_wrap_that_may_have_the_subgroup(wrap: str) -> None:
    other = "GROUP = dist.new_group([0, 1])\n"
    other += "shard = functools.partial(FSDP, process_group=GROUP)\n\n"
    other += f"def other(net, more, mesh):\n    return {wrap}\n\n"
    source = f"import functools\n{HEAD}{other}{SAVE.replace('build(net)', 'other(net, more, mesh)')}"
    assert "manual" in {found.level.value for found in findings(source)}


UNSEEN = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

def kind(model, whole):
    return FSDP.state_dict_type(model, StateDictType[whole])

def resume(net, optimizer, state, whole):
    model = FSDP(net, use_orig_params=True)
    with kind(model, whole):
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state))
"""


def test_what_a_scheduler_left_in_the_groups_is_named() -> None:
    (found,) = [one for one in findings(UNSEEN) if one.rule == "FSDP305"]
    assert found.level.value == "manual" and "initial_lr" in found.advice
