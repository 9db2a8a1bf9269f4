"""Makes docs/against-humans.md."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "against-humans.md"
HEADINGS = (
    *("commit", "kind", "native", "helper", "left", "fsdp_compat files"),
    *("safe", "review", "manual", "info", "lines", "lines by hand", "seconds"),
)
LEVELS = ("safe", "review", "manual", "info")


def commits() -> list[dict[str, Any]]:
    """The migrations by hand."""
    found: list[dict[str, Any]] = tomllib.loads((HERE / "commits.toml").read_text(encoding="utf-8"))["commit"]
    return found


def text() -> str:
    """The page: the head, and the tables of what was measured."""
    measured = json.loads((HERE / "measured.json").read_text(encoding="utf-8"))
    entries = {f"{entry['repository']} {entry['commit'][:12]}": entry for entry in commits()}
    rows = {name: measured["commits"].get(name, {"absent": True}) for name in entries}
    done = {name: row for name, row in rows.items() if "native" in row}
    head = (HERE / "head.md").read_text(encoding="utf-8")
    return "\n".join(
        [
            head.rstrip("\n"),
            *("", f"Measured on {measured['date']}, one process on {measured['machine']['device']}.", ""),
            *_table(HEADINGS, (_cells(name, entries[name], row) for name, row in rows.items())),
            "",
            *_table(("", *HEADINGS[2:6]), [_sums(done)]),
            *("", "## Why a call needs the helper", ""),
            *_table(("calls", "reason"), _reasons(done.values())),
            *("", "## The bugs that followed", ""),
            *_table(
                ("commit", "what went wrong after the manual migration", "this output"), _later(entries, done)
            ),
            "",
        ]
    )  # fmt: skip


def write_page() -> None:
    """Write :data:`PAGE`."""
    PAGE.write_text(text(), encoding="utf-8")


def _cells(name: str, entry: dict[str, Any], row: dict[str, Any]) -> list[str]:
    about = [name, entry["kind"]]
    if row.get("absent"):
        return [*about, "not measured", *[""] * 10]
    human = "+{} -{}".format(*row["human"])
    if row["seconds"] is None:
        return [*about, "took over 120 s", *[""] * 8, human, ""]
    counts = [row[key] for key in ("native", "helper", "left", "imports")]
    levels = [row["levels"].get(level, 0) for level in LEVELS]
    return [*about, *map(str, [*counts, *levels]), "+{} -{}".format(*row["tool"]), human, str(row["seconds"])]


def _sums(rows: dict[str, dict[str, Any]]) -> list[str]:
    keys = ("native", "helper", "left", "imports")
    return [f"{len(rows)} commits", *(str(sum(row[key] for row in rows.values())) for key in keys)]


def _reasons(rows: Iterable[dict[str, Any]]) -> list[list[str]]:
    total: Counter[str] = Counter()
    for row in rows:
        total.update(row["reasons"])
    return [[str(count), reason] for reason, count in total.most_common()]


def _later(entries: dict[str, dict[str, Any]], rows: dict[str, dict[str, Any]]) -> list[list[str]]:
    return [
        [name, bug["what"], verdict]
        for name, row in rows.items()
        for bug, verdict in zip(entries[name].get("later", ()), row["later"], strict=True)
    ]


def _table(headings: Iterable[str], cells: Iterable[Iterable[str]]) -> list[str]:
    names = list(headings)
    lines = [[cell.replace("|", "\\|") for cell in row] for row in cells]
    return [f"| {' | '.join(row)} |" for row in (names, ["---"] * len(names), *lines)]
