"""Sentences that were once untrue of code like this, or were said of code that they are not about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from fsdp_migrate.cli import main
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

HEAD = """
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, StateDictType
"""
BOTH = pytest.mark.parametrize("to", ["native", "shim"])


def said(to: str, **files: str) -> list[Finding]:
    """All findings in ``files`` (module name → source)."""
    tree = {f"{name}.py": text.encode() for name, text in files.items()}
    results = rewrite_tree(tree, Settings(to=to)).values()
    return [found for result in results if isinstance(result, Changed | Unchanged) for found in result.findings]


NORMS = {
    "a base": "class Norm(nn.BatchNorm2d):\n    pass\n\nclass Net(nn.Module):\n    norm = Norm(3)\n",
    "torch's": "class Net(nn.Module):\n    def __init__(self):\n        self.norm = nn.BatchNorm1d(3)\n",
    "its own, beside a library": "import torchvision\nclass BatchNorm(nn.Module):\n    pass\n\nNet = BatchNorm\n",
}


@BOTH
@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS.keys())
def test_batch_norm_of_the_same_file_is_not_assumed_away(norm: str, to: str) -> None:
    wrap = "def build():\n    return FSDP(Net(), mixed_precision=MixedPrecision(param_dtype=torch.bfloat16))\n"
    found = said(to, example=f"{HEAD}{norm}\n{wrap}")
    assert [each.message for each in found if "no BatchNorm" in each.message or "may bring" in each.message] == []
    if to == "native":
        assert any("the model may have BatchNorm" in each.message for each in found)


LAMB = """
from torch.optim import Optimizer

class Lamb(Optimizer):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad / p.data.norm())
"""
DDP = """
import torch
from torch.nn.parallel import DistributedDataParallel
from lamb import Lamb

def build(net):
    optimizer = Lamb(net.parameters())
    return DistributedDataParallel(net), optimizer

class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.model = DistributedDataParallel(self.model)
"""
SHARDED = """
def wrap(net):
    return FSDP(net, use_orig_params=True)

def run(net):
    net = wrap(net)
    return torch.optim.AdamW(net.parameters())
"""


@BOTH
def test_optimizers_of_ddp_models_are_not_built_too_early(to: str) -> None:
    found = said(to, lamb=LAMB, ddp=DDP, sharded=HEAD + SHARDED)
    assert {each.rule for each in found} & {"FSDP117", "FSDP125", "FSDP222", "FSDP228"} == set()
    assert {each.path for each in found if each.level.value in ("manual", "review")} <= {"sharded.py"}
    early = SHARDED.replace("    net = wrap(net)\n    return torch", "    made = torch").replace(
        "AdamW(net.parameters())", "AdamW(net.parameters())\n    return wrap(net), made"
    )
    assert to == "shim" or "FSDP117" in {each.rule for each in said(to, lamb=LAMB, ddp=DDP, sharded=HEAD + early)}


@pytest.mark.parametrize(
    "code",
    [
        "def build(net):\n    return torch.compile(FSDP(net))\n",
        "def build(net):\n    net = FSDP(net)\n    net = torch.compile(net)\n    return net\n",
        "class A:\n    def __init__(self, net):\n        self.net = FSDP(net)\n"
        "        self.fast = torch.compile(self.net)\n",
    ],
)
def test_keys_of_compiled_models_have_two_ways_out(code: str) -> None:
    (found,) = (each for each in said("native", example=HEAD + code) if each.rule == "FSDP120")
    assert found.level.value == "review"
    assert "_orig_mod" in found.message
    assert "checkpoint convert" in found.advice and "block.compile()" in found.advice


@BOTH
def test_nothing_has_to_be_loaded_with_fsdp1_that_can_be_converted(to: str) -> None:
    local = """
def save(net):
    model = FSDP(net)
    with FSDP.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        return model.state_dict()
"""
    found = [each for each in said(to, example=HEAD + local) if "LOCAL_STATE_DICT" in each.message + each.advice]
    assert found
    for each in found:
        words = f"{each.message} {each.advice}"
        assert re.search(r"\b(once|again)\b[^.]*\bFSDP1\b|\bload\w*\b[^.]*\bwith FSDP1\b", words) is None, words


def test_a_moment_that_is_also_the_other_one_fails_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = torch.ones(2, 2)
    states = {"w": {"exp_avg": moment, "exp_avg_sq": moment, "step": torch.tensor(1.0)}}
    saved = {"state": states, "param_groups": [{"params": ["w"], "lr": 0.1}]}
    torch.save(saved, tmp_path / "optimizer.pt")
    assert main(["check", str(tmp_path)]) == 1
    assert "FSDP407 manual" in capsys.readouterr().out
    assert main(["checkpoint", "inspect", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "start the optimizer again" in shown and "tied:" not in shown
    assert "load: # not this optimizer: see the finding" in shown
    torch.save({"model": {"w": moment + 1}, "optim": saved}, tmp_path / "optimizer.pt")
    assert main(["checkpoint", "inspect", str(tmp_path)]) == 1
    assert "load: # only the model, as the finding says" in capsys.readouterr().out
    states["w"]["exp_avg_sq"] = moment.clone()
    torch.save(saved, tmp_path / "optimizer.pt")
    assert main(["check", str(tmp_path)]) == 0
