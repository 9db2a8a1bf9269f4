"""What a call unpacks into its arguments: what stands beside a model in a tuple is no model by its place."""

from __future__ import annotations

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite_tree

SETUP = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from loop import train


def setup(net):
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
    opt = torch.optim.AdamW(model.parameters())
    return model, opt


def main(net, batches):
    parts = setup(net)
    train(*parts, batches)
"""
LOOP = """
import torch


def train(model, opt, batches):
    for batch in batches:
        loss = model(batch).sum()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(model.module.head)
"""


def test_the_optimizer_of_an_unpacked_tuple_is_no_model() -> None:
    after = rewrite_tree({"main.py": SETUP.encode(), "loop.py": LOOP.encode()})
    assert isinstance(after["loop.py"], Changed)
    text = after["loop.py"].source.decode()
    assert "opt.modules()" not in text
    assert "model.module" not in text, "the model itself is still followed"
