"""A part of the matrix of resuming: every value, most pairs; ``make test-all`` adds a twentieth of all combinations."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.parity.specs import Spec
from tests.pool import Pool
from tests.resume.cells import run
from tests.resume.factors import COMBINED, FACTORS, sample, valid, whole

ROOT = Path(__file__).resolve().parents[2]


def test_the_part_shows_every_value() -> None:
    assert {value for spec in sample() for value in spec.items()} == {
        (name, value) for name, values in FACTORS.items() for value in values
    }


def test_the_whole_has_every_combination_that_fsdp1_saves() -> None:
    every = itertools.product(*(FACTORS[name] for name in COMBINED))
    rest = {"ranks": "2 to 2", "model": "plain", "loop": "plain"}
    saved = {values for values in every if valid(rest | dict(zip(COMBINED, values, strict=True)))}
    assert {tuple(spec[name] for name in COMBINED) for spec in whole()} == saved
    assert all(map(valid, whole()))


#: Of the combinations, which take half an hour, ``make test-all`` trains each of this many.
EACH = 20


@pytest.mark.parametrize(
    "spec",
    [
        *sample(),
        *(
            pytest.param(spec, marks=pytest.mark.long if number % EACH else pytest.mark.whole)
            for number, spec in enumerate(whole())
        ),
    ],
    ids=lambda spec: ", ".join(spec.values()),
)
def test_training_goes_on_or_is_refused(pool: Pool, tmp_path: Path, spec: Spec) -> None:
    cell = run(pool, spec, tmp_path)
    assert cell.outcome.is_good, f"{cell.outcome.value}: {cell.detail}"


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("resume_matrix", ROOT / "scripts" / "resume_matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_of_the_last_run(script: ModuleType) -> None:
    data = json.loads(script.DATA.read_text(encoding="utf-8"))
    assert script.page(data) == script.PAGE.read_text(encoding="utf-8"), "run python scripts/resume_matrix.py --page"


def test_what_differs_is_counted_and_named(script: ModuleType) -> None:
    data = json.loads(script.DATA.read_text(encoding="utf-8"))
    data["cells"][0] |= {"outcome": "different", "detail": "loss | of step 2"}
    page = script.page(data)
    assert "**1** silently resumed differently" in page
    assert "loss \\| of step 2" in page
