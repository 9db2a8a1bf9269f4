"""Programs that hang on the class of a module, or on its name, trained before and after, native and on the shim."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.compare import differ
from tests.parity.trees import TRAINED, rewrite_tree, train_tree, tree
from tests.pool import Pool

HEAD = """\
import sys
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
import common
from common import CPU, Block, Net, data, finish, note, start

LOSS = {Net: 1.0, Block: 2.0}
BY_NAME = {"Net": 4.0, "Block": 5.0, "FullyShardedDataParallel": 6.0}


class Named(Net):
    def number(self):
        return {"Named": 9.0}.get(type(self).__name__, 0.0)

    def again(self):
        return {Named: 7.0}.get(self.__class__, 0.0)


def main():
    rank = start()
    model = FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=CPU, use_orig_params=True)
    named = FSDP(Named(), device_id=CPU, use_orig_params=True)
"""
FORMS = {
    "what the wrapper held is looked up": (
        "    note(LOSS[type(model.module)])\n    note(LOSS.get(model.module.__class__, 0))\n"
    ),
    "its name is": (
        "    note(BY_NAME[type(model.module).__name__])\n"
        "    note(getattr(common, type(model.module).__name__) is Net)\n"
    ),
    "it is compared": (
        "    note(type(model.module) is Net)\n    note(model.module.__class__ == Net)\n"
        "    note(type(model.module).__name__ == 'Net')\n    note(type(model.module) in (Block, Net))\n"
    ),
    "a key is formed of it": (
        "    found = {f'{type(model.module).__name__}/loss': 8.0}\n    note(found.get('Net/loss', 0))\n"
    ),
    "it is made again": "    note(sum(p.numel() for p in type(model.module)().parameters()))\n",
    "the wrapper's name is looked up": "    note(BY_NAME[type(model).__name__])\n",
    "a module asks for its own": "    note(named.number())\n    note(named.again())\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_classes_are_those_of_fsdp1(pool: Pool, tmp_path: Path, form: str) -> None:
    files = tree(train=HEAD + FORMS[form] + TRAINED)
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    for to in ("native", "shim"):
        done = rewrite_tree(files, Settings(to=to))
        assert done.manual() == []
        assert list(differ(to, before, train_tree(pool, done.files, tmp_path / to))) == []
