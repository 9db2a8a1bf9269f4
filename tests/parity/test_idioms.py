"""Idioms that stand around wrapping, trained under FSDP1 and as rewritten: losses and weights agree bit for bit."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.compare import differ
from tests.parity.cpu import fsdp1_on_cpu
from tests.parity.harness import rewritten
from tests.pool import Pool

PROGRAM = """\
import functools
import sys

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap

CPU = torch.device("cpu")


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, x):
        return x + torch.tanh(self.norm(self.linear(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.head = nn.Linear(6, 3)
        self.scale = 0.5

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x) * self.scale


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = Net()
{setup}
    torch.manual_seed(10 + rank)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 6)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with FSDP.summon_full_params(model):
        weights = [parameter.detach().clone() for parameter in model.parameters()]
    history = [None] * dist.get_world_size()
    dist.all_gather_object(history, losses)
    if rank == 0:
        torch.save({{"losses": history, "weights": weights}}, sys.argv[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
OPTIMIZER = "optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)"
SETUPS = {
    "optimizer before wrapping": f"""
        {OPTIMIZER}
        model = FSDP(model, device_id=CPU, use_orig_params=True)
        """,
    "optimizer and scheduler before wrapping": f"""
        {OPTIMIZER}
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        model = FSDP(model, device_id=CPU, use_orig_params=True)
        """,
    "optimizer before parts are wrapped in a loop": f"""
        {OPTIMIZER}
        for index, layer in enumerate(model.layers):
            model.layers[index] = FSDP(layer, device_id=CPU, use_orig_params=True)
        model = FSDP(model, device_id=CPU, use_orig_params=True)
        """,
    "a function that builds the optimizer before wrapping": """
        def make_optimizer(net):
            return torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=0.05)

        optimizer = make_optimizer(model)
        model = FSDP(model, device_id=CPU, use_orig_params=True)
        """,
    "a function that wraps after the optimizer": f"""
        def wrap_model(net):
            return FSDP(net, device_id=CPU, use_orig_params=True)

        {OPTIMIZER}
        model = wrap_model(model)
        """,
    "groups by dimensions before wrapping": """
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(groups, lr=0.05)
        model = FSDP(model, device_id=CPU, use_orig_params=True)
        """,
    "partial constructor": f"""
        wrapper = functools.partial(FSDP, device_id=CPU, use_orig_params=True)
        for index, layer in enumerate(model.layers):
            model.layers[index] = wrapper(layer)
        model = wrapper(model)
        {OPTIMIZER}
        """,
    "enable_wrap": f"""
        with enable_wrap(wrapper_cls=FSDP, device_id=CPU, use_orig_params=True):
            model.layers = nn.ModuleList(wrap(wrap(layer)) for layer in model.layers)
            model = wrap(model)
        {OPTIMIZER}
        """,
    "checkpointing after wrapping": f"""
        for index, layer in enumerate(model.layers):
            model.layers[index] = FSDP(layer, device_id=CPU, use_orig_params=True)
        model = FSDP(model, device_id=CPU, use_orig_params=True)
        wrapper = functools.partial(checkpoint_wrapper)
        apply_activation_checkpointing(
            model, checkpoint_wrapper_fn=wrapper, check_fn=lambda module: isinstance(module, Layer)
        )
        {OPTIMIZER}
        """,
    "apply on the wrapped model": f"""
        model.layers[0] = FSDP(model.layers[0], device_id=CPU, use_orig_params=True)
        model = FSDP(model, device_id=CPU, use_orig_params=True)

        @torch.no_grad()
        def init(module):
            if isinstance(module, nn.Linear):
                module.weight.copy_(torch.arange(module.weight.numel()).view_as(module.weight) / 20)

        model.apply(init)
        {OPTIMIZER}
        """,
    "the module inside": f"""
        model = FSDP(model, device_id=CPU, use_orig_params=True)
        model.module.scale = 0.25
        inner = model.module if isinstance(model, FSDP) else model
        assert inner.scale == 0.25 and len(FSDP.fsdp_modules(model)) == 1
        {OPTIMIZER}
        """,
}


@pytest.mark.parametrize("setup", SETUPS.values(), ids=SETUPS.keys())
def test_the_rewritten_program_trains_the_same(pool: Pool, tmp_path: Path, setup: str) -> None:
    import torch

    source = PROGRAM.format(setup=textwrap.indent(textwrap.dedent(setup).strip("\n"), "    "))
    results = []
    for text, prelude in ((source, fsdp1_on_cpu), (rewritten(source, Settings()), None)):
        script, saved = tmp_path / "train.py", tmp_path / "result.pt"
        saved.unlink(missing_ok=True)
        script.write_text(text)
        pool.run_script(script, 2, [str(saved)], prelude=prelude)
        results.append(torch.load(saved, weights_only=True))
    before, after = results
    assert list(differ("result", before, after)) == []
    assert before["losses"][0] != before["losses"][1], "the ranks have data of their own"
