"""torchao's gather in float8, which needs equal shards."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

SOURCE = "from torchao.float8 import Float8LinearConfig\n{sharding}\nconfig = Float8LinearConfig({given})\n"
FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net)"
FSDP2 = "from torch.distributed.fsdp import fully_shard\nfully_shard(net)"


def levels(sharding: str, given: str) -> list[str]:
    source = SOURCE.format(sharding=sharding, given=given)
    return [one.level.value for one in findings(source, Settings(traps=True)) if one.rule == "FSDP127"]


@pytest.mark.parametrize("sharding", [FSDP1, FSDP2])
def test_where_it_is_on(sharding: str) -> None:
    assert levels(sharding, "enable_fsdp_float8_all_gather=True") == ["review"]
    assert levels(sharding, "enable_fsdp_float8_all_gather=args.float8") == ["review"]
    assert levels(sharding, "enable_fsdp_float8_all_gather=False") == []
    assert levels(sharding, "") == []


def test_a_project_without_fsdp() -> None:
    assert levels("", "enable_fsdp_float8_all_gather=True") == []
