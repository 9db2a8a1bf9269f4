"""Ignored parameters in native code, which torch 2.7 and newer have: FSDP1 against what the rewriter makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.harness import check
from tests.parity.programs import program, programs
from tests.pool import Pool

PLAIN = {"policy": "module", "precision": "none", "init": "eager", "sync": "True", "group": "none", "clip": "none"}


@pytest.mark.parametrize("ignored", ["modules_frozen", "modules_trained", "states_frozen"])
def test_the_same_without_a_helper(pool: Pool, tmp_path: Path, ignored: str) -> None:
    spec = next(entry.spec for entry in programs() if PLAIN.items() <= {**entry.spec, **PLAIN}.items())
    simple = {
        **spec,
        **PLAIN,
        "model": "mlp",
        "ignored": ignored,
        "strategy": "FULL_SHARD",
        "spelling": "literal",
        "accumulate": "none",
        "place": "script",
    }
    simple |= {
        "call": "rebind",
        "kwargs": "direct",
        "midway": "none",
        "end": "context",
        "optimizer": "adamw",
        "place": "script",
    }
    outcome = check(pool, program(f"ignored-{ignored}", simple), tmp_path, Settings(torch=(2, 13)))
    assert outcome.verdict.good, f"{outcome.verdict.value}: {outcome.detail}"
