"""Programs beyond the matrix, in other names, layouts and surroundings; ``make differential`` draws hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.harness import check
from tests.parity.mutated import drawn
from tests.pool import Pool


@pytest.mark.parametrize("number", range(6))
def test_a_mutated_program_trains_the_same(pool: Pool, tmp_path: Path, number: int) -> None:
    outcome = check(pool, drawn(number), tmp_path, Settings())
    assert outcome.verdict.good, f"{outcome.verdict.value}: {outcome.detail}"
