"""Gradients cleared between a forward and its backward: the losses are FSDP1's, or a finding says that they are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.compare import differ
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

TRAIN = """
import sys
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, always_wrap_policy
from common import CPU, Block, data, finish, note, start


class Ended(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = Block(), Block()
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        x = self.last(self.first(x))
        {end}


def back(loss):
    loss.backward()


def main():
    rank = start()
    model = FSDP(
        Ended(),
        sharding_strategy=ShardingStrategy.{strategy},
        auto_wrap_policy={policy},
        device_id=CPU,
        use_orig_params={originals},
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(10 + rank)
    for step in range(4):
        {step}
        optimizer.step()
        note(loss)
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
BY_OPTIMIZER = "loss = model(data()).square().mean(); optimizer.zero_grad(); loss.backward()"
FILLED = "loss = model(data()).square().mean(); optimizer.zero_grad(set_to_none=False); loss.backward()"
BY_MODEL = "loss = model(data()).square().mean(); model.zero_grad(); back(loss)"
ABOVE = "optimizer.zero_grad(); loss = model(data()).square().mean(); loss.backward()"
BLOCKS = "ModuleWrapPolicy({Block})"
#: The end of the forward, the strategy, the policy, use_orig_params, the step, and whether FSDP1 keeps gradients.
CASES = {
    "a unit ends the model": ("return x", "SHARD_GRAD_OP", BLOCKS, True, BY_OPTIMIZER, True),
    "a unit is given in a tuple": ("y = (x, x.mean()); return y[0]", "SHARD_GRAD_OP", BLOCKS, True, BY_OPTIMIZER, True),
    "the root ends the model": ("return x * self.scale", "SHARD_GRAD_OP", BLOCKS, True, BY_OPTIMIZER, False),
    "filled with zeros": ("return x", "SHARD_GRAD_OP", BLOCKS, True, FILLED, False),
    "flat parameters": ("return x", "SHARD_GRAD_OP", "always_wrap_policy", False, BY_OPTIMIZER, False),
    "FULL_SHARD": ("return x", "FULL_SHARD", BLOCKS, True, BY_OPTIMIZER, False),
    "what is registered": ("return x * self.scale", "SHARD_GRAD_OP", BLOCKS, True, BY_MODEL, False),
    "what is registered, in a unit that ends the model": (
        *("return x", "SHARD_GRAD_OP", "always_wrap_policy", True),
        *(BY_MODEL.replace("model.zero_grad()", "[setattr(p, 'grad', None) for p in model.parameters()]"), False),
    ),
    "what is registered, flat": ("return x", "SHARD_GRAD_OP", BLOCKS, False, BY_MODEL, False),
    "above the forward": ("return x", "SHARD_GRAD_OP", BLOCKS, True, ABOVE, False),
}


@pytest.mark.parametrize("kind", ["native", "shim"])
@pytest.mark.parametrize("name", CASES)
def test_the_losses_are_fsdp1s(pool: Pool, tmp_path: Path, name: str, kind: str) -> None:
    end, strategy, policy, originals, step, keeps = CASES[name]
    lines = {"end": end, "strategy": strategy, "policy": policy, "originals": originals}
    text = TRAIN.format(step=step.replace("; ", "\n        "), **lines)
    files = tree(train=text)
    done = rewrite_tree(files, Settings(to=kind))
    assert [found for found in done.findings if found.level.value == "manual"] == []
    carried = [found for found in done.findings if "between a forward and its backward" in found.message]
    assert [found.rule for found in carried] == ["FSDP101"] * (keeps and kind == "native")
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert list(differ("losses", before, after)) == []


def test_what_another_file_wraps_is_kept_there(pool: Pool, tmp_path: Path) -> None:
    options = {"strategy": "SHARD_GRAD_OP", "policy": BLOCKS, "originals": True}
    text = TRAIN.format(
        step=BY_OPTIMIZER.replace("; ", "\n        "), end="return self.last(x * self.scale)", **options
    )
    head, _, main = text.partition("def back")
    wrap = main[main.index("    model = FSDP(") : main.index("    optimizer =")]
    build = f"def build():\n{wrap}    return model\n"
    files = tree(
        build=head + build,
        train="from build import build\n" + head + "def back" + main.replace(wrap, "    model = build()\n"),
    )
    done = rewrite_tree(files, Settings())
    assert [found.rule for found in done.findings if found.level.value == "manual"] == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert list(differ("losses", before, after)) == []


PARTLY = """loss = model(data()).square().mean()
        if step % 2:
            model(data())
        for parameter in optimizer.param_groups[0]["params"][::2]:
            parameter.grad = None
        loss.backward()"""


@pytest.mark.parametrize("strategy", ["SHARD_GRAD_OP", "FULL_SHARD", "NO_SHARD"])
def test_the_helpers_keep_a_unit_whose_gradients_are_partly_cleared(pool: Pool, tmp_path: Path, strategy: str) -> None:
    options = {"strategy": strategy, "policy": BLOCKS, "originals": True}
    files = tree(train=TRAIN.format(step=PARTLY, end="return x * self.scale", **options))
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, rewrite_tree(files, Settings(to="shim")).files, tmp_path / "after")
    assert list(differ("losses", before, after)) == []
