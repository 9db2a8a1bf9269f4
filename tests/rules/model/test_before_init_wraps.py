"""Methods that ``__init__`` calls above the wrap have a model that is not sharded yet."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

SOURCE = """
import os
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Trainer:
    def __init__(self, net, path):
        self.net = net
        if os.path.exists(path):
            self.{first}(path)
        self.net = FSDP(self.net, use_orig_params=True)
        {after}

    def _prepare(self, path):
        {handed}

    def _resume(self, path):
        self.net.load_state_dict(torch.load(path)["net"])

    def later(self, path):
        {later}
"""
LOAD = 'self.net.load_state_dict(torch.load(path)["net"])'


def source(first: str = "_resume", after: str = "pass", later: str = "pass") -> str:
    handed = "self._resume(path)" if "prepare" in first + later else "pass"
    return SOURCE.format(first=first, after=after, later=later, handed=handed)


def written(first: str = "_resume", after: str = "pass", later: str = "pass") -> str:
    result = rewrite(source(first, after, later))
    assert isinstance(result, Changed)
    return result.source.decode()


@pytest.mark.parametrize("first", ["_resume", "_prepare"])
def test_a_load_above_the_wrap_alone_is_left(first: str) -> None:
    assert LOAD in written(first)
    found = findings(source(first, later="self.net.train()"))
    assert [one for one in found if one.rule.startswith("FSDP3")] == []


@pytest.mark.parametrize(
    ("after", "later"),
    [("self._resume(path)", "pass"), ("pass", "self._resume(path)"), ("pass", "self._prepare(path)")],
)
def test_a_load_that_also_runs_later_asks(after: str, later: str) -> None:
    first = "_prepare" if "prepare" in later else "_resume"
    assert "full_state_dict=torch.distributed.is_initialized()" in written(first, after, later)


def test_a_method_that_others_may_call_asks() -> None:
    result = rewrite(source().replace("_resume", "resume"))
    assert isinstance(result, Changed)
    assert "is_initialized()" in result.source.decode()


def test_other_methods_have_the_sharded_model() -> None:
    output = written(later=LOAD)
    assert output.count(LOAD) == 1 and "full_state_dict=True" in output
