"""Units before and after a migration, side by side: bytes, padding, and what is gathered and reduced in a step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from fsdp_migrate.verify.report.facts import readable

_HEAD = ("unit", "bytes", "per rank", "padding", "gathers", "gathered", "reductions", "reduced")
_SIZES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def lines(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Iterator[str]:
    """A line per unit and side, for one backward per step; what a unit gathers and reduces, with its bytes."""
    rows: list[tuple[str, ...]] = [("", *_HEAD)]
    nothing: dict[str, Any] = {"units": []}
    for one, two in itertools.zip_longest(before, after, fillvalue=nothing):
        names = dict.fromkeys(unit["name"] for side in (one, two) for unit in side["units"])
        for name in names:
            for label, side in (("before", one), ("after", two)):
                rows += [(label, *_row(unit)) for unit in side["units"] if unit["name"] == name]
        for label, side in (("before", one), ("after", two)):
            rows.append((label, *_total(side["units"])))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _gathers(unit: dict[str, Any]) -> int:
    # FSDP1's root stays gathered between its forward and its backward whatever its strategy says.
    again = unit["reshard"] and not (unit["kind"] == "FSDP1" and not unit["name"])
    return (2 if again else 1) if unit["shards"] > 1 else 0


def numbers(unit: dict[str, Any]) -> tuple[int, int, int, int, int, int, int]:
    """Of one unit: bytes, bytes on a rank, padding; gathers of a step and their bytes; reductions and theirs.

    What is gathered and reduced is padded. A hybrid unit reduces twice: all of it over the shards, and then its shard
    over the replicas.
    """
    held = unit["nbytes"] // unit["numel"] if unit["numel"] else 0
    shards, padded = unit["shards"], max(unit["nbytes"], unit["local"] * unit["shards"])
    gathers, gathered = _gathers(unit), _scaled(unit["gathered"], unit, padded)
    reduced = _scaled(unit["trained"] * _SIZES.get(unit["reduce_dtype"] or "", held), unit, padded)
    passes = ([reduced] if shards > 1 else []) + ([reduced // shards] if unit["replicas"] > 1 else [])
    passes = passes if unit["trained"] else []
    return (
        unit["nbytes"], unit["local"], padded - unit["nbytes"], gathers, gathers * gathered, len(passes), sum(passes),
    )  # fmt: skip


def with_costs(model: dict[str, Any]) -> dict[str, Any]:
    """A model as JSON shows it beside another one: each unit with what :func:`numbers` counts."""
    return {**model, "units": [{**unit, **_costs(unit)} for unit in model["units"]]}


def _costs(unit: dict[str, Any]) -> dict[str, int]:
    _, _, padding, gathers, gathered, reductions, reduced = numbers(unit)
    return {
        "padding": padding,
        "gathers_per_step": gathers,
        "gathered_bytes_per_step": gathered,
        "reductions_per_step": reductions,
        "reduced_bytes_per_step": reduced,
    }


def _scaled(size: int, unit: dict[str, Any], padded: int) -> int:
    return size * padded // unit["nbytes"] if unit["nbytes"] else 0


def _row(unit: dict[str, Any]) -> tuple[str, ...]:
    return (unit["name"] or "(root)", *_cells(numbers(unit)))


def _total(units: list[dict[str, Any]]) -> tuple[str, ...]:
    sums = [sum(column) for column in zip(*map(numbers, units), strict=True)] if units else [0] * 7
    return ("total", *_cells(sums))


def _cells(numbers: Any) -> Iterator[str]:
    for index, number in enumerate(numbers):
        yield str(number) if index in (3, 5) else readable(number)
