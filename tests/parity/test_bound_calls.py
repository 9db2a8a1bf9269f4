"""Arguments that are bound before the call: partials of FSDP1, and wrap() in its context, train the same natively."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.trees import TRAINED, rewrite_tree, train_tree, tree
from tests.pool import Pool

HEAD = """\
import functools
import sys

import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, enable_wrap, wrap

from common import Block, Net, data, finish, note, start

HALF = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
"""
CPU = 'device_id=torch.device("cpu"), use_orig_params=True'


def program(wrap: str, above: str = "", **others: str) -> dict[str, str]:
    """A project that trains what the statements ``wrap`` make of ``model``."""
    lines = "".join(f"    {line}\n" for line in wrap.strip().splitlines())
    return tree(
        train=f"{HEAD}{above}\n\ndef main():\n    rank = start()\n    model = Net()\n{lines}{TRAINED}", **others
    )


NATIVE = {
    "one call": program(
        f"shard = functools.partial(FSDP, auto_wrap_policy=ModuleWrapPolicy({{Block}}), mixed_precision=HALF, {CPU})\n"
        "model = shard(model)"
    ),
    "parts, then the model": program(
        f"shard = functools.partial(FSDP, mixed_precision=HALF, {CPU})\n"
        "model.embed = shard(model.embed)\n"
        "for index, block in enumerate(model.blocks):\n"
        "    block = shard(block, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n"
        "    model.blocks[index] = block\n"
        "model = shard(model)"
    ),
    "in a list": program(
        f"shard = functools.partial(FSDP, {CPU})\n"
        "model.blocks = nn.ModuleList(shard(block) for block in model.blocks)\n"
        "model = shard(model)"
    ),
    "of the module, in a function": program(
        "model = build(model)",
        f"shard = functools.partial(FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, {CPU})\n\n\n"
        "def build(net):\n    net.head = shard(net.head)\n    return shard(net)\n",
    ),
    "a context": program(
        f"with enable_wrap(wrapper_cls=FSDP, {CPU}):\n"
        "    model.head = wrap(model.head, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)\n"
        "    model.blocks = nn.ModuleList(wrap(block) for block in model.blocks)\n"
        "    model = wrap(model)"
    ),
    "a context that unpacks a dictionary of its arguments": program(
        "options = {\n"
        '    "mixed_precision": MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),\n'
        '    "sharding_strategy": ShardingStrategy.SHARD_GRAD_OP,\n'
        '    "use_orig_params": True,\n'
        "}\n"
        'with enable_wrap(wrapper_cls=FSDP, device_id=torch.device("cpu"), **options):\n'
        "    for index, block in enumerate(model.blocks):\n"
        "        model.blocks[index] = wrap(block)\n"
        "    model = wrap(model)"
    ),
    "parts of a list on the meta device": program(
        'with torch.device("meta"):\n'
        "    model = Net()\n"
        'options = {"param_init_fn": fill, "mixed_precision": HALF, "use_orig_params": True}\n'
        'with enable_wrap(wrapper_cls=FSDP, device_id=torch.device("cpu"), **options):\n'
        "    for index, block in enumerate(model.blocks):\n"
        "        model.blocks[index] = wrap(block)\n"
        "    model = wrap(model)",
        "\n\n@torch.no_grad()\ndef fill(module):\n"
        '    module.to_empty(device=torch.device("cpu"), recurse=False)\n'
        "    for number, param in enumerate(module.parameters(False)):\n"
        "        param.copy_(torch.linspace(-0.5, 0.5 + number, param.numel()).view(param.shape))\n",
    ),
    "a partial that unpacks a dictionary": program(
        f"common = dict(mixed_precision=HALF, {CPU})\n"
        "shard = functools.partial(FSDP, **common)\n"
        "model.head = shard(model.head)\n"
        "model = shard(model, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)"
    ),
    "a context, wrapped twice": program(
        f"with enable_wrap(wrapper_cls=FSDP, mixed_precision=HALF, {CPU}):\n"
        "    model.blocks = nn.ModuleList(wrap(wrap(block)) for block in model.blocks)\n"
        "    model = wrap(model)"
    ),
}


@pytest.mark.parametrize("name", NATIVE)
def test_calls_with_bound_arguments_train_natively(pool: Pool, tmp_path: Path, name: str) -> None:
    rewritten = rewrite_tree(NATIVE[name])
    assert rewritten.manual() == []
    text = rewritten.files["train.py"]
    assert not [word for word in ("fsdp_compat", "partial(", "enable_wrap", "FSDP(") if word in text], text
    before = train_tree(pool, NATIVE[name], tmp_path / "before", fsdp1=True)
    after = train_tree(pool, rewritten.files, tmp_path / "after")
    assert list(differ("rank", before, after)) == []
    assert rewrite_tree(rewritten.files).files == rewritten.files
