"""Wrong edits in rewrites are found by their other form, in few runs."""

from __future__ import annotations

import pytest

from fsdp_migrate.verify.bisect.smallest import most_runs
from fsdp_migrate.verify.report.bisect_text import run_line
from tests.pool import Pool
from tests.verify.bisect_seeds import SEEDS, Seed, Seeded

#: A fixed part of the seeds; ``make bisect-matrix`` runs all and prints the table.
CHOSEN = ("wrong reduce dtype", "gradient sync on during accumulation", "gradient sync off in one model")


@pytest.fixture(scope="module")
def seeded(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Seeded:
    return Seeded(pool, tmp_path_factory.mktemp("bisect"))


@pytest.mark.parametrize(
    "seed",
    [seed if seed.name in CHOSEN else pytest.param(seed, marks=pytest.mark.long) for seed in SEEDS],
    ids=lambda seed: seed.name,
)
def test_a_wrong_edit_is_found(seeded: Seeded, seed: Seed) -> None:
    told: list[str] = []
    found, wrong = seeded.searched(seed, lambda *run: told.append(run_line(*run)))
    assert found.search is not None
    assert [edit.name for edit in found.edits] == [wrong.name], told
    assert found.search.runs == len(told) <= most_runs(len(seeded.forms(seed.project).edits))
    assert told[-1].startswith(f"run {len(told)} of at most ")


def test_there_are_twenty_seeds_with_names_of_their_own() -> None:
    assert len({seed.name for seed in SEEDS}) == len(SEEDS) >= 20
