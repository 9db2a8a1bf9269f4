"""Defects in the migrated minigpt are found at the right place, and the migrated program as it is equals FSDP1."""

from __future__ import annotations

import re

import pytest

from fsdp_migrate.verify.verdict import EQUAL, Verdict
from scripts.picture import PICTURE, picture, words
from tests.pool import ROOT, Pool
from tests.verify.defects import DEFECTS, Defect, Programs
from tests.verify.expected import misses

#: A fixed part of the matrix, of each kind of cause one; ``make verify-matrix`` runs all.
CHOSEN = ("missing unit", "reduce_dtype", "reduces every micro-batch", "weight decay of norms", "untied", "activation")


@pytest.fixture(scope="module")
def programs(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(pool, tmp_path_factory.mktemp("defects"))


@pytest.fixture(scope="module")
def whole(programs: Programs) -> Verdict:
    """Of the migrated program as it is."""
    return programs.verdict(None)


def test_the_migrated_program_is_equal_bit_for_bit(whole: Verdict) -> None:
    assert (whole.exit_code, whole.firsts, whole.noise) == (EQUAL, (), "")
    assert whole.compared > 1000


def test_the_picture_of_the_readme_is_what_verify_says(whole: Verdict) -> None:
    drawn = PICTURE.read_text(encoding="utf-8")
    assert words(drawn) == words(picture(whole)), "run make picture"
    assert f"{whole.compared} of {whole.compared} values" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"href=|src=|url\((?!#)", drawn) == [], "it loads nothing"


@pytest.mark.parametrize("defect", [d for d in DEFECTS if d.name in CHOSEN], ids=lambda defect: defect.name)
def test_a_defect_is_found_where_it_is(programs: Programs, defect: Defect) -> None:
    assert list(misses(defect, programs.verdict(defect))) == []


def test_every_defect_has_a_name_of_its_own() -> None:
    assert len({defect.name for defect in DEFECTS}) == len(DEFECTS) >= 25
