"""Programs of the parity matrix are equal by verify; ``make verify-programs`` does it for all, and the projects."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.programs import Program, programs
from tests.parity.tolerance import BUFFERS, EXACT, tolerance
from tests.pool import Pool
from tests.verify.matrix_programs import judged

EQUAL = [p for p in programs() if tolerance(p.spec) in (EXACT, BUFFERS)]
#: One of each strategy that must be equal bit for bit, the first of the matrix.
CHOSEN = {p.spec["strategy"]: p for p in reversed(EQUAL)}
#: The first whose units hold parameters inside of activation checkpointing: its wrappers are no part of their names.
CHECKPOINTED = next(p for p in EQUAL if p.spec["checkpointing"] == "after" and p.spec["policy"] in ("always", "size"))


#: One whose result may differ within a tolerance, for each tolerance.
CLOSE = {tolerance(p.spec): p for p in reversed(programs()) if tolerance(p.spec) not in (EXACT, BUFFERS)}


@pytest.mark.parametrize("program", (*CHOSEN.values(), CHECKPOINTED), ids=lambda program: program.name)
def test_a_program_of_the_matrix_is_equal(pool: Pool, tmp_path: Path, program: Program) -> None:
    found = judged(pool, program, tmp_path)
    assert found.beyond is None
    assert (found.found.first, found.found.noise) == (None, "")
    assert found.found.compared > 0


@pytest.mark.parametrize("program", CLOSE.values(), ids=lambda program: program.name)
def test_a_program_with_a_tolerance_remains_within_it(pool: Pool, tmp_path: Path, program: Program) -> None:
    assert judged(pool, program, tmp_path).beyond is None
