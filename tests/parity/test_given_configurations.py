"""Configurations of states that the program gives at run time: FSDP1 takes None for one, and few have a rank0_only."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

HEAD = """
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.fsdp import FullOptimStateDictConfig, FullStateDictConfig, ShardedOptimStateDictConfig
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import ShardedStateDictConfig, StateDictType
"""
BLOCK = """
{indent}with FSDP.state_dict_type({model}, {kind}, {config}, {optim}):
{indent}    return {model}.state_dict(), FSDP.optim_state_dict({model}, optimizer)
"""
FULL = ("StateDictType.FULL_STATE_DICT", "FullStateDictConfig()", "FullOptimStateDictConfig(offload_to_cpu=False)")
SHARDED = ("StateDictType.SHARDED_STATE_DICT", "ShardedStateDictConfig()", "ShardedOptimStateDictConfig()")
GIVEN = (FULL, SHARDED, (FULL[0], "None", "None"), (SHARDED[0], "None", "None"))


def _block(kind: str, config: str, optim: str, indent: str = "    ") -> str:
    return BLOCK.format(indent=indent, model="model", kind=kind, config=config, optim=optim)


#: Functions ``save(model, optimizer, kind, config, optim)``.
SHAPES = {
    "parameters": "def save(model, optimizer, kind, config=None, optim=None):" + _block("kind", "config", "optim"),
    "attributes": (
        "class Saver:\n    def __init__(self, kind, config, optim):\n        self.kind = kind\n"
        "        self.config = config\n        self.optim = optim\n\n    def save(self, model, optimizer):"
        + _block("self.kind", "self.config", "self.optim", " " * 8)
        + "\ndef save(model, optimizer, *given):\n    return Saver(*given).save(model, optimizer)\n"
    ),
    "a dataclass": (
        "@dataclass\nclass Given:\n    kind: Any\n    config: Any = None\n    optim: Any = None\n\n"
        "def run(model, optimizer, given):"
        + _block("given.kind", "given.config", "given.optim")
        + "\ndef save(model, optimizer, *given):\n    return run(model, optimizer, Given(*given))\n"
    ),
    "a dictionary": (
        "def save(model, optimizer, kind, *given):\n    table = {'config': given[0], 'optim': given[1]}"
        + _block("kind", "table['config']", "table['optim']")
    ),
    "branches": (
        "def save(model, optimizer, kind, given, optim):\n    config = None\n    if given is not None:\n"
        "        config = given" + _block("kind", "config", "optim")
    ),
}
TRAIN = """
from common import CPU, Net, data, finish, note, start
{imports}


def main():
    rank = start()
    for given in [{given}]:
        model = FSDP(Net(), device_id=CPU, use_orig_params=True)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        torch.manual_seed(10 + rank)
        model(data()).square().mean().backward()
        optimizer.step()
        state, optim = save(model, optimizer, *given)
        note(len(state))
        note(len(optim["state"]))
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""


def _program(shape: str, elsewhere: bool) -> dict[str, str]:
    given = ", ".join(f"({', '.join(one)})" for one in GIVEN)
    train = TRAIN.format(imports="from saving import save" if elsewhere else "", given=given)
    if elsewhere:
        return tree(saving=HEAD + "\n" + SHAPES[shape], train=HEAD + train)
    return tree(train=HEAD + "\n" + SHAPES[shape] + "\n" + train)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["one file", "two files"])
@pytest.mark.parametrize("shape", SHAPES)
def test_no_option_is_read_of_a_configuration_that_lacks_it(
    shape: str, elsewhere: bool, pool: Pool, tmp_path: Path
) -> None:
    after = rewrite_tree(_program(shape, elsewhere))
    assert not after.manual()
    text = "".join(after.files.values())
    assert ".rank0_only" not in text and ".offload_to_cpu" not in text
    for rank in train_tree(pool, after.files, tmp_path / "after"):
        assert rank == [12.0, 12.0] * len(GIVEN)


def test_a_configuration_that_is_surely_one_is_asked_for_its_offloading() -> None:
    body = HEAD + (
        "\ndef save(model, optimizer, fast, kind):\n    config = FullStateDictConfig()\n    if fast:\n"
        "        config = ShardedStateDictConfig()\n" + _block("kind", "config", "None")
    )
    assert "cpu_offload=config.offload_to_cpu" in rewrite_tree(tree(train=body)).files["train.py"]
