"""What --compare says of units is what a step gathers and reduces, and the table shows where two sides differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.report.side_by_side import lines, numbers, with_costs
from tests.pool import Pool
from tests.verify import units

Found = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def two(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Found]:
    directory = tmp_path_factory.mktemp("units")
    return directory, pool.run(units.run, 2, str(directory))[0]


def measured(directory: Path, name: str) -> tuple[int, int, int, int]:
    """Gathers and their bytes, reductions and theirs, of the last step."""
    counted = read(directory / name).steps[-1].ranks[0].collectives
    gathers = (counted.get("all_gather", 0), counted.get("all_gather bytes", 0))
    kinds = ("reduce_scatter", "all_reduce")
    reductions = [sum(counted.get(f"{kind}{what}", 0) for kind in kinds) for what in ("", " bytes")]
    return (*gathers, reductions[0], reductions[1])


def said(found: Found, name: str) -> tuple[int, ...]:
    return tuple(sum(column) for column in zip(*(numbers(unit)[3:] for unit in found[name]["units"]), strict=True))


@pytest.mark.parametrize("name", units.TWO)
def test_a_step_gathers_and_reduces_what_is_said(two: tuple[Path, Found], name: str) -> None:
    assert said(two[1], name) == measured(two[0], name)


def test_a_hybrid_step_reduces_over_shards_and_over_replicas(pool: Pool, tmp_path: Path) -> None:
    found = pool.run(units.run, 4, str(tmp_path))[0]
    for name in units.FOUR:
        assert said(found, name) == measured(tmp_path, name)


def test_the_table_has_each_unit_of_both_sides_and_totals(two: tuple[Path, Found]) -> None:
    before, after = two[1]["FSDP1"], two[1]["FSDP2"]
    table = [line.split() for line in lines([before], [after])]
    assert table[0] == ["unit", "bytes", "per", "rank", "padding", "gathers", "gathered", "reductions", "reduced"]
    assert [row[:2] for row in table[1:]] == [
        [side, name] for name in ("(root)", "blocks.0", "blocks.1", "total") for side in ("before", "after")
    ]
    # 11 x 7 numbers of 4 bytes, cut into 2: FSDP1 pads the flat parameter, FSDP2 the rows of each parameter.
    assert table[1] == ["before", "(root)", "308", "B", "156", "B", "4", "B", "1", "312", "B", "1", "312", "B"]
    assert table[2] == ["after", "(root)", "308", "B", "168", "B", "28", "B", "1", "336", "B", "1", "336", "B"]


def test_json_counts_as_the_table_does(two: tuple[Path, Found]) -> None:
    names = ("padding", "gathers_per_step", "gathered_bytes_per_step", "reductions_per_step", "reduced_bytes_per_step")
    roots = [with_costs(two[1][side])["units"][0] for side in ("FSDP1", "FSDP2")]
    assert [[root[name] for name in names] for root in roots] == [[4, 1, 312, 1, 312], [28, 1, 336, 1, 336]]


def test_a_unit_or_model_of_one_side_is_in_the_table(two: tuple[Path, Found]) -> None:
    before, after = two[1]["FSDP1"], two[1]["FSDP2"]
    fewer = {**after, "units": after["units"][:1]}
    assert [line.split()[:2] for line in lines([before], [fewer])][2:4] == [["after", "(root)"], ["before", "blocks.0"]]
    assert sum("total" in line for line in lines([before, before], [after])) == 4
