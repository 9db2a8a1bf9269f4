"""Rule FSDP317: parameters and gradients of a sharded model that are saved or sent without a state dict."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

HEAD = """
import pickle
import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def collect(named):
    return {name: p.detach().cpu().clone() for name, p in named if p.requires_grad}


class Average:
    def __init__(self, net):
        self.shadow = {}
        for name, p in net.named_parameters():
            self.shadow[name] = p.data.clone()


def main(net, other, rank, gathered):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.AdamW(model.parameters())
"""


def _found(lines: str) -> list[tuple[int, str, str]]:
    source = HEAD + "".join(f"    {line}\n" for line in lines.splitlines())
    start = HEAD.count("\n")
    return [(one.line - start, one.level.value, one.message) for one in findings(source) if one.rule == "FSDP317"]


@pytest.mark.parametrize(
    "lines",
    [
        "torch.save(collect(model.named_parameters()), 'x.pt')",
        "torch.save({'step': 1, 'model': {n: p.data for n, p in model.named_parameters()}}, 'x.pt')",
        "torch.save(model.module.head.weight.detach().cpu(), 'x.pt')",
        "torch.save([p.grad for p in model.parameters()], 'x.pt')",
        "torch.save(obj={n: p.grad.clone() for n, p in model.named_parameters()}, f='x.pt')",
        "save_file(collect(model.named_parameters()), 'x.safetensors')",
        "pickle.dump(list(model.parameters()), open('x.pkl', 'wb'))",
        "np.savez('x.npz', *[p.data for p in model.parameters()])",
        "torch.save(Average(model).shadow, 'x.pt')",
        "torch.save({'optimizer': optimizer.state_dict(), 'ema': Average(model).shadow}, 'x.pt')",
    ],
)
def test_what_is_written(lines: str) -> None:
    assert [(line, level) for line, level, _ in _found(lines)] == [(1, "manual")]


def test_what_is_put_into_a_container_afterwards() -> None:
    lines = "parts = {}\nparts['a'] = []\nparts['a'].append(model.head.weight)\ntorch.save({'b': parts}, 'x.pt')"
    found = _found(lines)
    assert [(line, level) for line, level, _ in found] == [(4, "manual")]


def test_a_script_without_functions() -> None:
    source = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
        "model = FSDP(torch.nn.Linear(2, 2), use_orig_params=True)\n"
        "torch.save({n: p for n, p in model.named_parameters()}, 'x.pt')\n"
    )
    assert [one.line for one in findings(source) if one.rule == "FSDP317"] == [4]


def test_what_is_sent() -> None:
    ((line, level, message),) = _found(
        "parts = collect(model.named_parameters())\ndist.all_gather_object(gathered, parts)"
    )
    assert (line, level) == (2, "manual")
    assert message.startswith("all_gather_object() sends DTensors")


@pytest.mark.parametrize(
    "lines",
    [
        "torch.save(collect(other.named_parameters()), 'x.pt')",
        "torch.save({n: p.shape for n, p in model.named_parameters()}, 'x.pt')",
        "torch.save(model.state_dict(), 'x.pt')",
        "torch.save({'optimizer': optimizer.state_dict()}, 'x.pt')",
        # What is copied of gathered parameters is whole.
        "with FSDP.summon_full_params(model):\n    whole = {n: p.clone() for n, p in model.named_parameters()}\n"
        "torch.save(whole, 'x.pt')",
        "with FSDP.summon_full_params(model):\n    torch.save(collect(model.named_parameters()), 'x.pt')",
        "dist.all_gather_object(gathered, rank)",
    ],
)
def test_noop(lines: str) -> None:
    assert _found(lines) == []


def test_noop_before_the_model_is_sharded() -> None:
    source = HEAD.replace(
        "    model = FSDP", "    torch.save(collect(net.named_parameters()), 'x.pt')\n    model = FSDP"
    )
    assert [one for one in findings(source) if one.rule == "FSDP317"] == []
