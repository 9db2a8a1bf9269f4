"""What a test for FSDP1's class says of a model that nothing else is known of."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

HEAD = "from contextlib import nullcontext\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
BODIES = {
    "conditional": "    make = m.no_sync if isinstance(m, FSDP) else nullcontext\n    with make():\n        m(1)\n",
    "if": "    if isinstance(m, FSDP):\n        with m.no_sync():\n            m(1)\n",
    "assert": "    assert isinstance(m, FSDP)\n    with m.no_sync():\n        m(1)\n",
    "early return": "    if not isinstance(m, FSDP):\n        return\n    with m.no_sync():\n        m(1)\n",
    "type": "    if type(m) is FSDP:\n        with m.no_sync():\n            m(1)\n",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_what_it_says_is_sharded(body: str) -> None:
    assert "FSDP202" in {found.rule for found in findings(f"{HEAD}def sample(m):\n{body}")}


def test_the_other_arm_is_not() -> None:
    body = "    if isinstance(m, FSDP):\n        return\n    with m.no_sync():\n        m(1)\n"
    levels = {found.level.value for found in findings(f"{HEAD}def sample(m):\n{body}") if found.rule == "FSDP202"}
    assert "manual" not in levels
