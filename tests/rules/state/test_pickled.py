"""FSDP312, 313 and 314, and what FSDP309 says of files: states of another kind, and loads that load nothing."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

IMPORTS = """\
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from torch.distributed.tensor import DTensor

def main(net, path, rank):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
"""


OPTIONS = "from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict"


def said(body: str, rule: str) -> list[str]:
    """The levels of what ``rule`` says about the lines of ``body`` inside a function that has a model."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return [found.level.value for found in findings(IMPORTS + lines) if found.rule == rule]


@pytest.mark.parametrize(
    "body",
    [
        "dcp.load({'optimizer': optimizer.state_dict()}, checkpoint_id=path)",
        "state = {'app': {'optimizer': optimizer.state_dict()}}\ndcp.load(state_dict=state, checkpoint_id=path)",
        "kept = optimizer.state_dict()\ndcp.load_state_dict(kept, dcp.FileSystemReader(path))",
        "dcp.load({}, checkpoint_id=path)",
        "state = {}\ndcp.load(state, checkpoint_id=path)\nmodel.load_state_dict(state)",
    ],
)
def test_a_load_that_asks_for_nothing(body: str) -> None:
    assert said(body, "FSDP313") == ["manual"]


def test_a_gathered_state_of_a_fresh_optimizer_has_its_keys_from_now_on() -> None:
    body = "dcp.load({'optimizer': FSDP.optim_state_dict(model, optimizer)}, checkpoint_id=path)"
    assert said(body, "FSDP313") == ["manual"]


@pytest.mark.parametrize(
    "body",
    [
        "dcp.load({'model': model.state_dict()}, checkpoint_id=path)",
        "state = {}\nstate['model'] = model.state_dict()\ndcp.load(state, checkpoint_id=path)",
        "state = {}\nfill(state)\ndcp.load(state, checkpoint_id=path)",
        "other.load({}, checkpoint_id=path)",
        "dcp.save({'optimizer': optimizer.state_dict()}, checkpoint_id=path)",
    ],
)
def test_a_load_that_asks_for_something(body: str) -> None:
    assert said(body, "FSDP313") == []


@pytest.mark.parametrize(
    "body",
    [
        "model.load_state_dict(torch.load(path), strict=False)",
        "model.load_state_dict(torch.load(path), False)",
        "with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT):\n"
        "    net.load_state_dict(torch.load(path), strict=False)",
        "dcp.load(rank, planner=dcp.DefaultLoadPlanner(allow_partial_load=True))",
        "return dcp.default_planner.DefaultLoadPlanner(True, True, True)",
        "set_model_state_dict(model, rank, options=StateDictOptions(strict=False))",
        "options = StateDictOptions(strict=False, full_state_dict=True)\nreturn options",
    ],
)
def test_a_load_that_may_skip_everything(body: str) -> None:
    assert said(f"{OPTIONS}\n{body}", "FSDP314") == ["review"]


@pytest.mark.parametrize(
    "body",
    [
        "net.load_state_dict(torch.load(path), strict=False)\nmodel = FSDP(net)",
        "rank.model.load_state_dict(torch.load(path), strict=False)",
        "model.load_state_dict(torch.load(path), strict=rank)",
        "model.load_state_dict(torch.load(path))",
        "result = model.load_state_dict(torch.load(path), strict=False)",
        "print(set_model_state_dict(model, rank, options=StateDictOptions(strict=False)))",
        "dcp.load(rank, planner=dcp.DefaultLoadPlanner(allow_partial_load=False))",
        "dcp.load(rank, planner=dcp.DefaultLoadPlanner())",
    ],
)
def test_a_load_that_tells_what_it_skips(body: str) -> None:
    assert said(f"{OPTIONS}\n{body}", "FSDP314") == []


@pytest.mark.parametrize(
    ("call", "listed"),
    [
        ("model.load_state_dict(torch.load(path), strict=False)", False),
        ("keys = model.load_state_dict(torch.load(path), strict=False)\n    print(keys.missing_keys)", True),
        ("keys = model.load_state_dict(torch.load(path), strict=True)\n    print(keys.missing_keys)", False),
    ],
)
def test_missing_keys_are_listed_where_they_are_read(call: str, listed: bool) -> None:
    result = rewrite(f"{IMPORTS}    {call}\n")
    assert isinstance(result, Changed)
    assert (b"_replace(missing_keys=" in result.source) is listed


def test_loads_outside_of_fsdp1_projects() -> None:
    source = "import torch.distributed.checkpoint as dcp\ndcp.load({}, checkpoint_id='x')\n"
    source += "planner = dcp.DefaultLoadPlanner(allow_partial_load=True)\n"
    assert findings(source) == ()


def test_a_sharded_tensor_is_looked_for() -> None:
    assert said("return isinstance(net.weight, ShardedTensor)", "FSDP312") == ["manual"]
    assert said("return type(net.weight) in (ShardedTensor, DTensor)", "FSDP312") == ["review"]
    assert said("return isinstance(net.weight, DTensor)", "FSDP312") == []


SHARDED = "with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n    "


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (f"{SHARDED}torch.save(model.state_dict(), path)", "review"),
        (f"{SHARDED}torch.save({{'model': model.state_dict()}}, path)", "review"),
        (f"{SHARDED}state = model.state_dict()\ntorch.save({{'m': 1}}, path)", "safe"),
        (f"{SHARDED}state = model.state_dict()\ntorch.save(state, path)", "review"),
        (f"{SHARDED}dcp.save(model.state_dict(), checkpoint_id=path)", "safe"),
        (f"{SHARDED}model.load_state_dict(torch.load(path))", "review"),
        (f"{SHARDED}model.load_state_dict(torch.load(path)['model'])", "review"),
        (f"state = model.state_dict()\n{SHARDED}model.load_state_dict(state)", "safe"),
    ],
)
def test_files_of_each_rank_change_their_kind(body: str, expected: str) -> None:
    assert said(body, "FSDP309")[-1] == expected


def test_an_optimizer_in_a_file_that_has_nothing_to_do_with_fsdp1() -> None:
    source = "import torch\n\ndef save(optimizer, path):\n    torch.save(optimizer.state_dict(), path)\n"
    assert findings(source, None, elsewhere=IMPORTS) == ()
    assert said("torch.save(optimizer.state_dict(), path)", "FSDP311") == ["review"]
