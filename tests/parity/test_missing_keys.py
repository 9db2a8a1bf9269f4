"""What a load that is not strict says was missing, before and after a rewrite."""

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
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType
from common import CPU, Net, data, finish, note, start


def main():
    start()
    model = FSDP(Net(), device_id=CPU, use_orig_params=True)
    part = {{f"head.{{name}}": torch.ones(shape) for name, shape in (("weight", (3, 6)), ("gone", (2,)))}}
    {load}
    note(model(torch.ones(5, 6)).sum())
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
NOTE = "note(sum(len(name) for name in missing)); note(len(unexpected)); note(len(part))"
LOADS = {
    "a pair": f"missing, unexpected = model.load_state_dict(part, strict=False); {NOTE}",
    "a field in a context": f"""with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        said = model.load_state_dict({{**part}}, strict=False)
    missing, unexpected = said.missing_keys, said.unexpected_keys; {NOTE}""",
    "inside an expression": "note(len(model.load_state_dict(dict(part), strict=False).missing_keys))",
    "not read": "model.load_state_dict(part, strict=False); note(len(part))",
}


@pytest.mark.parametrize("kind", ["native", "shim"])
@pytest.mark.parametrize("name", LOADS)
def test_missing_keys_are_fsdp1s(pool: Pool, tmp_path: Path, name: str, kind: str) -> None:
    files = tree(train=TRAIN.format(load=LOADS[name].replace("; ", "\n    ")))
    done = rewrite_tree(files, Settings(to=kind))
    assert done.manual() == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert list(differ("losses", before, after)) == []
