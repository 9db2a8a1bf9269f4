"""Every measurement in the repository says when, where and with what it was made."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

MEASURED = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.json"))


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_a_measurement_has_its_conditions(path: Path) -> None:
    found = json.loads(path.read_text())
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", found["date"])
    assert re.fullmatch(r"3\.\d+\.\d+", found["versions"]["python"])
    assert found["machine"]["device"]
    assert found["machine"]["cores"] > 0
    assert path.with_suffix(".py").exists()
