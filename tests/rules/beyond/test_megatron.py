"""Megatron-FSDP, whose ``fully_shard`` is not torch's: its branch is no FSDP2 branch."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_noop, findings

SOURCE = """
{imports}
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(net, args):
    if args.other:
        return {call}(net)
    return FSDP(net, use_orig_params=True)
"""


def found(imports: str, call: str) -> dict[str, str]:
    every = findings(SOURCE.format(imports=imports, call=call))
    return {one.rule: one.level.value for one in every if one.rule in ("FSDP101", "FSDP907")}


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from megatron_fsdp import fully_shard", "fully_shard"),
        ("from megatron_fsdp import fully_shard_model as fully_shard", "fully_shard"),
        ("import megatron_fsdp", "megatron_fsdp.fully_shard"),
    ],
)
def test_fsdp1_beside_it_is_rewritten(imports: str, call: str) -> None:
    assert found(imports, call) == {"FSDP101": "safe", "FSDP907": "info"}


def test_fsdp1_beside_fsdp2_is_kept() -> None:
    assert found("from torch.distributed.fsdp import fully_shard", "fully_shard") == {"FSDP101": "info"}


def test_other_names_of_megatron() -> None:
    check_noop("from megatron.core import parallel_state\n")
