"""FSDP309: calls of ``state_dict`` on a name that is the sharded model in one run and another object in the next."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite

HEAD = """\
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Average:
    def __init__(self, model):
        self.values = [p.detach().clone() for p in model.parameters()]

    def state_dict(self):
        return {{"values": self.values}}

def run(net):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.Adam(model.parameters())
    average = Average(model)
    parts = {parts}
    return {{name: part.state_dict() for name, part in parts.items()}}
"""
MIXED = ("dict(model=model, average=average)", '{"model": model, "optimizer": optimizer}')


@pytest.mark.parametrize("parts", MIXED)
def test_they_are_left_with_a_finding(parts: str) -> None:
    result = rewrite(HEAD.format(parts=parts).encode())
    assert isinstance(result, Changed)
    assert [one.level.value for one in result.findings if one.rule == "FSDP309"] == ["manual"]
    assert "part.state_dict()" in result.source.decode()


@pytest.mark.parametrize("parts", ['{"model": model}', '{"average": average}'])
def test_one_kind_alone_is_known(parts: str) -> None:
    result = rewrite(HEAD.format(parts=parts).encode())
    assert isinstance(result, Changed | Unchanged)
    assert "manual" not in [one.level.value for one in result.findings if one.rule == "FSDP309"]


@pytest.mark.parametrize(("check", "is_known"), [("pass", False), ("assert isinstance(part, FSDP), 'no'", True)])
def test_an_assertion_says_which(check: str, is_known: bool) -> None:
    state = f"\ndef state(part):\n    {check}\n    return part.state_dict()\n"
    source = HEAD.format(parts=MIXED[0]).replace("part.state_dict()", "state(part)") + state
    result = rewrite(source.encode())
    assert isinstance(result, Changed)
    levels = [one.level.value for one in result.findings if one.rule == "FSDP309"]
    assert ("manual" in levels) is not is_known
    assert ("get_model_state_dict(part" in result.source.decode()) is is_known
