"""Fed the inputs that they had before, modules show every defect, where otherwise one hides the next."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.verify.compare.alone import alone
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.recording.read import read
from tests.pool import Pool
from tests.verify import fed


@pytest.mark.parametrize("checkpointed", [False, True], ids=["plain", "checkpointed"])
def test_feeding_shows_the_second_of_two_defects(pool: Pool, tmp_path: Path, checkpointed: bool) -> None:
    pool.run(fed.run, 2, str(tmp_path), checkpointed)
    before, after, given = (read(tmp_path / name) for name in ("before", "after", "fed"))
    found = Comparison(before, after).tally.of(Question.FORWARD)
    assert found[0].name == f"0:{fed.DEFECTS[0]}"
    hidden = {difference.name for difference in found}
    assert {"0:blocks.1.act", "0:head", f"0:{fed.DEFECTS[1]}"} <= hidden, "one defect spreads to all that follows"
    assert [difference.name for difference in alone(Comparison(before, given))] == [f"0:{n}" for n in fed.DEFECTS]


def test_a_sound_program_differs_nowhere_when_fed(pool: Pool, tmp_path: Path) -> None:
    pool.run(sound, 2, str(tmp_path))
    assert alone(Comparison(read(tmp_path / "before"), read(tmp_path / "fed"))) == ()


def sound(rank: int, world_size: int, directory: str) -> None:
    before, given = (str(Path(directory, name)) for name in ("before", "fed"))
    fed.train(rank, fed.fsdp1()(fed.build(False, False)), fed.Orders(before, 1, stop=False, deep=1, keeps=True))
    fed.train(rank, fed.fsdp2()(fed.build(False, False)), fed.Orders(given, 1, stop=False, deep=1, feed=before))
