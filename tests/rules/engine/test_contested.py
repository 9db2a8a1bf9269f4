"""What one rule leaves to a human keeps its bytes, whatever another rule would make of its statement."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite

HEAD = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import own_norm

def run(net, path, limit):
    model = FSDP(net, use_orig_params=True)
"""
CONTESTED = {
    "around": "total = model.clip_grad_norm_(own_norm(limit))",
    "the whole statement": "other = FSDP(own_norm(net), use_orig_params=True)",
    "around and inside": "print(own_norm(FSDP.fsdp_modules(model)), model.clip_grad_norm_(own_norm.limit))",
    "an argument": "model.load_state_dict(own_norm(path), strict=False)",
    "several on a line": "loss = 1; total = model.clip_grad_norm_(own_norm(limit))",
}


@pytest.mark.parametrize("line", CONTESTED.values(), ids=CONTESTED.keys())
def test_a_statement_that_is_left_to_a_human_keeps_its_bytes(line: str) -> None:
    result = rewrite(f"{HEAD}    {line}\n    return model\n")
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert line.rpartition("; ")[2] in text
    at = {found.rule: (found.level.value, found.message) for found in result.findings if found.line == 6}
    assert at["FSDP902"][0] == "manual"
    unchanged = "unchanged: change this statement by hand (FSDP902)"
    assert ("info", unchanged) in at.values()
    assert not {level for level, _ in at.values()} & {"safe", "review"}
    assert "    model = fully_shard(net)\n" in text
    again = rewrite(result.source)
    assert not isinstance(again, Changed) or again.source == result.source


def test_a_wrap_inside_of_one_that_is_left_keeps_its_bytes() -> None:
    line = "return FSDP(FSDP(net, device_id=0), unknown_argument=1)"
    result = rewrite(f"{HEAD}    {line}\n")
    assert isinstance(result, Changed)
    assert line in result.source.decode()
    assert {found.level.value for found in result.findings if found.line == 6} == {"info", "manual"}


def test_an_edit_beside_such_a_place_is_made() -> None:
    result = rewrite(f"{HEAD}    print(own_norm(1), isinstance(model, FSDP))\n")
    assert isinstance(result, Changed)
    assert b"print(own_norm(1), isinstance(model, FSDPModule))" in result.source


def test_two_rewrites_of_one_expression_are_left_to_a_human() -> None:
    line = "model.load_state_dict(FSDP.optim_state_dict_to_load(model, model, path))"
    result = rewrite(f"{HEAD}    {line}\n")
    assert isinstance(result, Changed)
    assert line in result.source.decode()
    found = {(entry.rule, entry.level.value, entry.message) for entry in result.findings if entry.line == 6}
    said = "FSDP305 and FSDP309 would rewrite this in different ways, so it is unchanged"
    assert ("FSDP305", "manual", said) in found
    assert not {level for _, level, _ in found} & {"safe", "review"}


SHARED = """import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision

def run(blocks, net):
    precision = MixedPrecision(param_dtype=torch.bfloat16)
    kwargs = dict(mixed_precision=precision, use_orig_params=True)
    for index, block in enumerate(blocks):
        blocks[index] = FSDP(block, **kwargs)
    return FSDP(net, **kwargs)
"""


def test_what_two_wraps_share_is_rewritten_once() -> None:
    result = rewrite(SHARED)
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert text.count("precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16") == 1
    assert "blocks[index] = fully_shard(block, mp_policy=" in text.replace("(\n            ", "(")
    assert not [found for found in result.findings if found.level.value == "manual"]


LOOP = "while isinstance(model, FSDP):"
TWO = f"{HEAD}    other = FSDP(path)\n    {LOOP}"


@pytest.mark.parametrize("body", ["model = other.module", "steps = 1; model = other.module"])
def test_what_is_on_the_line_of_a_loop_that_is_left_keeps_its_bytes(body: str) -> None:
    result = rewrite(f"{TWO} {body}\n")
    assert isinstance(result, Changed)
    assert f"\n    {LOOP} {body}\n" in result.source.decode()
    assert {found.level.value for found in result.findings if found.line == 7} == {"info", "manual"}


def test_what_is_below_a_loop_that_is_left_is_rewritten() -> None:
    result = rewrite(f"{TWO}\n        model = other.module\n")
    assert isinstance(result, Changed)
    assert f"    {LOOP}\n        model = other\n" in result.source.decode()
