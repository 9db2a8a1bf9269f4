"""A part of the matrix that has every value of every factor, and under ``make test-all`` more of it.

``make parity`` trains the whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.harness import check
from tests.parity.programs import Program, programs
from tests.pool import Pool

#: Of the rest of the matrix, ``make test-all`` trains one in so many.
EACH = 4


def others() -> list[tuple[Program, pytest.MarkDecorator]]:
    """The rest of the matrix, with its marks."""
    part = {program.name for program in chosen()}
    left = [program for program in programs() if program.name not in part]
    return [(one, pytest.mark.long if place % EACH else pytest.mark.whole) for place, one in enumerate(left)]


def chosen(count: int = 14) -> list[Program]:
    """From both families, the ``count`` programs that, one after the other, add the most values not shown before."""
    result: list[Program] = []
    for family in ("a", "n"):
        left = [program for program in programs() if program.name.startswith(family)]
        seen: set[tuple[str, str]] = set()
        for _ in range(count):
            best = max(left, key=lambda program: len(set(program.spec.items()) - seen))
            left.remove(best)
            seen |= set(best.spec.items())
            result.append(best)
    return result


def test_the_part_shows_every_value() -> None:
    every = {value for program in programs() for value in program.spec.items()}
    assert {value for program in chosen() for value in program.spec.items()} == every


@pytest.mark.parametrize(
    "program",
    [*chosen(), *(pytest.param(program, marks=mark) for program, mark in others())],
    ids=lambda program: program.name,
)
def test_the_rewritten_program_trains_the_same(pool: Pool, tmp_path: Path, program: Program) -> None:
    outcome = check(pool, program, tmp_path, Settings())
    assert outcome.verdict.good, f"{outcome.verdict.value}: {outcome.detail}"
