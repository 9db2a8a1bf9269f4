"""ShardedTensor: manual where a state is asked for one, nothing to change where files of FSDP1 are read."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

HEAD = """\
import torch
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def wrap(net):
    return FSDP(net)

"""
FORMS = {
    "def parts(m):\n    return [v for v in m.state_dict().values() if isinstance(v, ShardedTensor)]\n": "manual",
    "def whole(value):\n    return isinstance(value, ShardedTensor)\n": "manual",
    "def join(path):\n    s = torch.load(path)\n    return [v for v in s if isinstance(v, ShardedTensor)]\n": "info",
    "def is_one(v):\n    return isinstance(v, ShardedTensor)\n\ndef join(path):\n"
    "    return [v for v in torch.load(path) if is_one(v)]\n": "info",
    "def is_one(v):\n    return isinstance(v, ShardedTensor)\n\ndef join(path, model):\n"
    "    return is_one(torch.load(path)) or is_one(model.state_dict())\n": "manual",
    "def size(value: ShardedTensor) -> int:\n    return value.numel()\n": "info",
}


@pytest.mark.parametrize(("source", "level"), FORMS.items())
def test_code_that_only_reads_files_needs_no_change(source: str, level: str) -> None:
    found = [one for one in findings(HEAD + source) if one.rule == "FSDP312"]
    assert [one.level.value for one in found] == [level]
    assert ("no change needed" in found[0].advice) == (level == "info")
