"""Strategies that a module chooses when it is imported, before a process group exists: trained before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.trees import TRAINED, rewrite_tree, train_tree, tree
from tests.pool import Pool

HEAD = """\
import sys
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from common import CPU, Net, data, finish, note, start
"""
MAIN = (
    """

def wrap(model, kind{default}):
    return FSDP(model, sharding_strategy={chosen}, device_id=CPU, use_orig_params=True)


def main():
    rank = start()
    model = wrap(Net(), "{kind}")
"""
    + TRAINED
)
ALIKE = 'KINDS = {"full": ShardingStrategy.FULL_SHARD, "op": ShardingStrategy.SHARD_GRAD_OP}\n'
MIXED = 'KINDS = {"full": ShardingStrategy.FULL_SHARD, "none": ShardingStrategy.NO_SHARD}\n'
CHOSEN = 'CHOSEN = ShardingStrategy.NO_SHARD if "--none" in sys.argv else ShardingStrategy.SHARD_GRAD_OP\n'


def program(definition: str, chosen: str, kind: str, default: str = "") -> dict[str, str]:
    return tree(train=HEAD + definition + MAIN.format(chosen=chosen, kind=kind, default=default))


FORMS = {
    "one mesh for all": program(ALIKE, "KINDS[kind]", "op"),
    "a mesh for some, not for the chosen one": program(MIXED, "KINDS[kind]", "full"),
    "a mesh for the chosen one": program(MIXED, "KINDS[kind]", "none"),
    "a choice by the command line": program(CHOSEN, "CHOSEN", "op"),
    "a default value": program("", "strategy", "op", ", strategy=ShardingStrategy.NO_SHARD"),
    "in a class": program(
        "class Kinds:\n    op = ShardingStrategy.SHARD_GRAD_OP\n    none = ShardingStrategy.NO_SHARD\n",
        "Kinds.op if kind == 'op' else Kinds.none",
        "none",
    ),
}


@pytest.mark.parametrize("files", FORMS.values(), ids=FORMS.keys())
def test_no_mesh_is_made_before_there_is_a_group(pool: Pool, tmp_path: Path, files: dict[str, str]) -> None:
    done = rewrite_tree(files)
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert list(differ("losses", before, after)) == []
    assert not done.manual()
