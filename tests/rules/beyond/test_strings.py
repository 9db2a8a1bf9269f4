"""FSDP904: texts that are searched for the name of FSDP1's class, which no class of a sharded module has any more."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

HEAD = "import re\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(build())\n"


def levels(source: str, to: str = "native") -> list[str]:
    found = findings(HEAD + source + "\n", Settings(to=to))  # type: ignore[arg-type]
    return [entry.level.value for entry in found if entry.rule == "FSDP904"]


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    "source",
    [
        "assert 'FullyShardedDataParallel' in str(model)",
        "assert 'FullyShardedDataParallel(' in repr(model)",
        "print([event for event in events if 'FullyShardedDataParallel' in event.name])",
        "print([event for event in events if event.name.startswith('FullyShardedDataParallel.forward')])",
        "print(re.search('FullyShardedDataParallel', summary))",
        "kinds = [one for one in names if one.kind_name == 'FullyShardedDataParallel']",
        "print(event.name in ('DistributedDataParallel', 'FullyShardedDataParallel'))",
    ],
)
def test_texts_that_are_searched(source: str, to: str) -> None:
    assert levels(source, to) == ["review"]


@pytest.mark.parametrize(
    "source",
    [
        "logger.info('FullyShardedDataParallel is used')",
        "raise ValueError('no FullyShardedDataParallel here')",
        "is_sharded = type(model).__name__ == 'FullyShardedDataParallel'",
        "if config.parallel == 'FullyShardedDataParallel':\n    pass",
        "'FullyShardedDataParallel is what this trains with.'",
    ],
)
def test_other_texts(source: str) -> None:
    assert levels(source) == []
