"""What a finding says of a call that changed is what was written for it."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import findings, rewrite
from tests.rules.test_fixtures import FIXTURES, source

HEAD = """\
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
"""
WRAP = HEAD + "def build(model, args):\n    return FSDP(model, {})\n"
NESTED = """\
class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = FSDP(inner)
"""
STATE = """\
def save(net):
    model = FSDP(net)
    with FSDP.state_dict_type(model, StateDictType.{}):
        return model.state_dict()
"""


def _messages(source: str) -> dict[str, str]:
    return {found.rule: found.message for found in findings(source)}


def test_a_model_is_a_part_of_another_only_where_it_is() -> None:
    assert _messages(WRAP.format("use_orig_params=True"))["FSDP110"] == "the model is sharded in place"
    assert _messages(HEAD + NESTED)["FSDP110"] == "part of a larger model: sharded in place, inputs are not cast here"


@pytest.mark.parametrize(
    ("arguments", "native"),
    [
        ("auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.cuda.current_device()", True),
        ("auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), device_id=torch.cuda.current_device(), **args.more", False),
        ("auto_wrap_policy=args.policy, device_id=args.device, sync_module_states=args.sync, **args.more", False),
    ],
)
def test_what_a_helper_does_at_run_time_is_not_said_to_be_written(arguments: str, native: bool) -> None:
    said = _messages(WRAP.format(arguments))
    of_arguments = [message for rule, message in said.items() if rule in ("FSDP103", "FSDP106", "FSDP110", "FSDP114")]
    assert len(of_arguments) >= 3
    assert {" is passed to fsdp_compat.shard" in message for message in of_arguments} == {not native}


def test_a_sharded_state_is_not_said_to_be_gathered() -> None:
    source = HEAD + STATE.format("SHARDED_STATE_DICT")
    assert "StateDictOptions" not in str(rewrite(source))
    said = _messages(source)
    assert said["FSDP301"] == "removed, since FSDP2's states are sharded by default (SHARDED_STATE_DICT)"
    kept = "and copies the state (FSDP1 returns a copy; FSDP2's state changes with the next step)"
    assert said["FSDP309"] == f"get_model_state_dict returns the state, {kept}"
    full = HEAD + STATE.format("FULL_STATE_DICT")
    assert "StateDictOptions(" in str(rewrite(full)).replace("each call now passes its own StateDictOptions (", "")
    assert _messages(full)["FSDP301"] == "each call now passes its own StateDictOptions (FULL_STATE_DICT)"


@pytest.mark.parametrize("to", ["native", "shim"])
def test_what_is_left_to_a_human_says_what_to_do(to: str) -> None:
    """Each manual finding of a fixture has an advice, and each review has one or an assumption."""
    silent = {}
    for fixture in FIXTURES:
        result = rewrite(source(fixture, "before"), Settings(to=to))
        for found in result.findings if isinstance(result, Changed | Unchanged) else ():
            without = found.level is Level.MANUAL or "assum" not in found.message
            if found.level in (Level.MANUAL, Level.REVIEW) and without and not found.advice:
                silent[found.rule, found.level.value, found.message] = fixture
    assert silent == {}


CHOSEN = """\
def choose(settings):
    settings["sharding_strategy"] = ShardingStrategy.SHARD_GRAD_OP
    settings.sort()

def save(net):
    with FSDP.state_dict_type(net, StateDictType.LOCAL_STATE_DICT):
        return net.state_dict()
"""


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("FSDP(net, **settings)", "which fsdp_compat.shard accepts"),
        ("FSDP(net, sharding_strategy=settings.pop())", "which fsdp_compat.shard accepts"),
        ("FSDP(FSDP(net), **settings)", "assuming only fsdp_compat.shard, which accepts them, gets one"),
        ("FSDP(net)", "assuming no rewritten call gets one at run time"),
    ],
)
def test_values_that_the_helper_takes_are_not_to_be_removed(call: str, said: str) -> None:
    found = findings(f"{HEAD}{CHOSEN}def wrap(net, settings):\n    return save({call})\n")
    (message,) = (one.message for one in found if "still has FSDP1 values" in one.message)
    assert message == f"ShardingStrategy: this file still has FSDP1 values, {said}"
