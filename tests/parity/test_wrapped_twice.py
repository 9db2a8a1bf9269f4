"""One model wrapped twice, as FSDP1 allows: trained before and after."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.trees import TRAINED, rewrite_tree, train_tree, tree
from tests.pool import Pool

HEAD = """\
import sys
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from common import CPU, Net, data, finish, note, start
"""
MAIN = (
    """
OPTIONS = {{"device_id": CPU, "use_orig_params": True}}
{above}

def main():
    rank = start()
    model = Net()
{setup}
"""
    + TRAINED
)
AGAIN = """
def again(part):
    part = FSDP(part, **OPTIONS)
    return FSDP(part, **OPTIONS)
"""


def program(setup: str, above: str = "") -> dict[str, str]:
    return tree(train=HEAD + MAIN.format(setup=setup, above=above))


FORMS = {
    "in one expression": program("    model = FSDP(FSDP(model, **OPTIONS), **OPTIONS)"),
    "under one name": program("    model = FSDP(model, **OPTIONS)\n    model = FSDP(model, **OPTIONS)"),
    "under two names": program("    inner = FSDP(model, **OPTIONS)\n    model = FSDP(inner, **OPTIONS)"),
    "by a function": program("    model = again(model)", AGAIN),
}


@pytest.mark.parametrize("files", FORMS.values(), ids=FORMS.keys())
def test_both_wraps_are_carried_out(pool: Pool, tmp_path: Path, files: dict[str, str]) -> None:
    done = rewrite_tree(files)
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert list(differ("losses", before, after)) == []
