"""What ``tune`` predicted for both sides of a comparison, beside what was counted there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.report.facts import readable, side
from fsdp_migrate.verify.verdict import Verdict

#: What a plan calls collectives, and what a recording does.
_KINDS = (("gather", "all_gather"), ("scatter", "reduce_scatter"), ("reduction", "all_reduce"))
Rows = Mapping[str, Mapping[str, Any]]


class BadPlan(ValueError):
    """A file that is not what ``tune --format json`` prints, or lacks a layout; the message says which."""


def load(wanted: str) -> Rows:
    """The rows of FSDP1 and of a layout, "now" by default, from ``FILE[:LAYOUT]``. Raises :class:`BadPlan`."""
    path, _, layout = wanted.partition(":") if not Path(wanted).is_file() else (wanted, "", "")
    try:
        values = json.loads(Path(path).read_bytes())
        rows = {row["name"]: row for row in values["layouts"]}
        before = values["fsdp1"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadPlan(f"{path} is not what fsdp-migrate tune --format json prints") from error
    if before is None:
        raise BadPlan(f"{path} was made of a program without FSDP1")
    if (layout or "now") not in rows:
        raise BadPlan(f"{path} has no layout {layout!r}: {', '.join(rows)}")
    return {"before": before, "after": rows[layout or "now"]}


def with_plan(verdict: Verdict, rows: Rows | None) -> Verdict:
    """The same, with what was planned among its notes."""
    return verdict if rows is None else replace(verdict, notes=(*verdict.notes, *_costs(rows, verdict)))


def _costs(rows: Rows, verdict: Verdict) -> Iterator[str]:
    """Two lines for each side: what a step was planned to cost, and what was counted in one of its steps."""
    for label, run in (("before", verdict.comparison.before), ("after", verdict.comparison.after)):
        row = rows[label]
        issued = [(row[f"{kind}s"], row[f"{kind}_bytes"]) for kind, _ in _KINDS]
        peak = f"{readable(row['peak'])} at most ({readable(row['peak_gathered'])} gathered)"
        yield f"planned {label} ({row['name']}): {_issued(issued)}, {peak}, {row['seconds']:.3f} seconds"
        yield f"counted {label}: {_issued(_counted(run))}, {_measured(run)}"


def _issued(counts: list[tuple[int, int]]) -> str:
    return ", ".join(
        f"{number} {kind}{'' if number == 1 else 's'} ({readable(nbytes)})"
        for (kind, _), (number, nbytes) in zip(_KINDS, counts, strict=True)
        if number
    )


def _counted(run: Recording) -> list[tuple[int, int]]:
    found = run.steps[min(2, len(run.steps) - 1)].ranks[0].collectives if run.steps else {}
    return [(found.get(name, 0), found.get(f"{name} bytes", 0)) for _, name in _KINDS]


def _measured(run: Recording) -> str:
    cost = side(run)
    seconds = "" if cost.seconds is None else f", {cost.seconds:.3f} seconds with the update"
    return f"{readable(cost.peak)} of {cost.peak_of}{seconds}"
