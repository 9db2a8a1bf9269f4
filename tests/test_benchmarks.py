"""Every measurement in the repository says when, where and with what it was made."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.llama import Shape
from benchmarks.prefetch_in_flight import measured

MEASURED = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.json"))


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_a_measurement_has_its_conditions(path: Path) -> None:
    found = json.loads(path.read_text())
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", found["date"])
    assert re.fullmatch(r"3\.\d+\.\d+", found["versions"]["python"])
    assert found["machine"]["device"]
    assert found["machine"]["cores"] > 0
    assert path.with_suffix(".py").exists()


def test_the_page_about_checkpoints_says_what_was_measured() -> None:
    found = json.loads((MEASURED[0].parent / "checkpoint_convert.json").read_text())
    sizes = [found[name] for name in ("tensors_of_one_size", "one_large_tensor")]
    runs = [run for size in sizes for run in size["conversions"].values()]
    page = " ".join((MEASURED[0].parents[1] / "docs/checkpoints.md").read_text().split())
    for name, said in (
        ("memory_factor", "{} to {} times the largest tensor"),
        ("read_again", "took {} to {} times as"),
    ):
        values = [run[name] for run in runs]
        assert said.format(round(min(values), 1), round(max(values), 1)) in page
    assert f"With {sizes[0]['gib']} and {sizes[1]['gib']} GiB of tensors" in page
    assert "load_average" in found


def test_as_many_all_gathers_are_in_flight_as_under_fsdp1() -> None:
    found = measured(Shape(3, 16, 8, 1), "cpu", 2)
    assert found["without"]["in_flight"] == {name: [0, 0, 0] for name in ("fsdp1", "native", "shim")}
    assert found["with"]["in_flight"] == {name: [1, 1, 0] for name in ("fsdp1", "native", "shim")}
    assert found["with"]["ratio"] == {"native": 1.0, "shim": 1.0}
