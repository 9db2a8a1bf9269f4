"""Models in FSDP or in another wrapper that are compiled after that: the test that is written looks inside."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite

WRAP = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

def build(kind, net):
    return FSDP(net, use_orig_params=True) if kind == "fsdp" else DDP(net)
"""
HERE = """
def run(kind, net, path):
    model = build(kind, net)
    {compiled}
    state = model.state_dict()
    torch.save(state, path)
"""
ELSEWHERE = """
from example import build, keep
{imported}

def run(kind, net, path):
    model = build(kind, net)
    keep({given}, path)
"""
KEEP = """
def keep(model, path):
    torch.save(model.state_dict(), path)
"""
SEES = 'isinstance(getattr(model, "_orig_mod", model), FSDPModule)'


def text(source: str, **others: str) -> str:
    result = rewrite(source, **others)
    assert isinstance(result, Changed), result
    return "".join(result.source.decode().split())


@pytest.mark.parametrize("compiled", ["model = torch.compile(model)", "if kind:\n        model = torch.compile(model)"])
def test_the_test_of_a_model_that_is_compiled_here_looks_inside(compiled: str) -> None:
    assert SEES.replace(" ", "") in text(WRAP + HERE.format(compiled=compiled))


@pytest.mark.parametrize(
    ("imported", "given"),
    [("import torch", "torch.compile(model, dynamic=True)"), ("from torch import compile as fast", "fast(model)")],
)
def test_so_does_that_of_one_that_another_file_compiles(imported: str, given: str) -> None:
    assert SEES.replace(" ", "") in text(WRAP + KEEP, main=ELSEWHERE.format(imported=imported, given=given))


def test_where_nothing_is_compiled_the_model_itself_is_asked() -> None:
    assert "isinstance(model,FSDPModule)" in text(WRAP + HERE.format(compiled="pass"))
