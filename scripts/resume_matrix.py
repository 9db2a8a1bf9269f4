"""Trains the matrix of resuming: FSDP1 saves, FSDP2 loads and goes on; writes docs/resume.json and docs/resume.md.

    python scripts/resume_matrix.py [--drawn 500] [--whole [FACTOR …]] [--only FACTOR=VALUE …] [--page]

``--page`` writes the page again from docs/resume.json and trains nothing. Exits 1 if a run goes on differently, or
fails and nothing has said so.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from tests.pool import Pool  # noqa: E402
from tests.resume.cells import Cell, Outcome, run  # noqa: E402
from tests.resume.factors import COMBINED, EXCLUDED, FACTORS, FORMS, WAYS, drawn, pairwise, whole  # noqa: E402
from tests.resume.program import AFTER, BEFORE  # noqa: E402

DATA, PAGE = ROOT / "docs/resume.json", ROOT / "docs/resume.md"
#: How the page names forms whose own name is not clear outside of the matrix.
TITLES = {
    "full by the old names": "full, with FSDP.full_optim_state_dict",
    "sharded folder by the first names": "sharded folder, with dcp.save_state_dict",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], metavar="FACTOR=VALUE", help="these alone, and no page")
    parser.add_argument("--drawn", type=int, metavar="N", help="N combinations drawn from all, and no page")
    parser.add_argument("--whole", nargs="*", metavar="FACTOR", help="all combinations of some factors, and no page")
    parser.add_argument("--after", type=int, default=0, metavar="N", help="leave out the first N")
    parser.add_argument("--seed", type=int, default=0, help="what they are drawn by")
    parser.add_argument("--page", action="store_true", help="write the page from the last run, and train nothing")
    options = parser.parse_args(arguments)
    if options.page:
        PAGE.write_text(page(json.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")
        return 0
    wanted = dict(each.split("=", 1) for each in options.only)
    every = drawn(options.drawn, options.seed) if options.drawn else pairwise()
    if options.whole is not None:
        every = whole(options.whole or COMBINED)
    chosen = [spec for spec in every[options.after :] if wanted.items() <= spec.items()]
    cells: list[Cell] = []
    with Pool(4) as pool:
        for spec in chosen:
            with tempfile.TemporaryDirectory() as directory:
                cell = run(pool, spec, Path(directory))
            cells.append(cell)
            if not cell.outcome.is_good or wanted:
                print(f"{cell.outcome.value}: {', '.join(spec.values())}: {cell.detail[-1500:]}", flush=True)
            elif len(cells) % 25 == 0:
                print(f"{len(cells)} of {len(chosen)}", flush=True)
    for outcome, count in collections.Counter(cell.outcome.value for cell in cells).items():
        print(f"{count:4} {outcome}")
    if not wanted and not options.drawn and not options.after and options.whole is None:
        data = results(cells)
        _write(data)
        PAGE.write_text(page(data), encoding="utf-8")
    return 0 if all(cell.outcome.is_good for cell in cells) else 1


def results(cells: Sequence[Cell]) -> dict[str, Any]:
    """What docs/resume.json has of a run."""
    found = [{"outcome": cell.outcome.value, "spec": dict(cell.spec), "detail": cell.detail} for cell in cells]
    return {"date": date.today().isoformat(), "torch": torch.__version__, "cells": found}


def _write(data: Mapping[str, Any]) -> None:
    cells = ",\n".join(f"  {json.dumps(one)}" for one in data["cells"])
    head = "".join(f"  {json.dumps(key)}: {json.dumps(data[key])},\n" for key in ("date", "torch"))
    DATA.write_text(f'{{\n{head}  "cells": [\n{cells}\n  ]\n}}\n', encoding="utf-8")


def page(data: Mapping[str, Any]) -> str:
    """The text of docs/resume.md."""
    cells = data["cells"]
    counts = collections.Counter(one["outcome"] for one in cells)
    bad = [one for one in cells if not Outcome(one["outcome"]).is_good]
    like = counts[Outcome.LIKE_FSDP1.value]
    release = data["torch"].partition("+")[0]
    lines = ["<!-- Written by `make resume-matrix`; do not edit. -->", "# Resuming", ""]
    lines += [
        f"{len(cells)} programs trained {BEFORE} steps under FSDP1, saved by their own code and trained {AFTER} more.",
        f"FSDP2 loaded what they saved and trained the same {AFTER} steps: {counts[Outcome.EQUAL.value]} resumed bit",
        f"for bit, {counts[Outcome.CLOSE.value]} within a rounding difference with a known cause,",
        f"{counts[Outcome.REFUSED.value]} were refused with advice, {counts[Outcome.FSDP1_FAILS.value]}",
        f"fails under FSDP1 as well, and **{len(bad)}** silently resumed differently, or failed without advice.",
        *([f"{like} resumed exactly like FSDP1's own load, which does not restore everything."] if like else []),
        "",
        f"Run on {data['date']} with torch {release}, on two or four CPU processes over gloo. Every pair of values of",
        "two factors occurs in at least one program, if FSDP1 can save that combination. `--whole` trains every",
        "combination of form, `use_orig_params`, optimizer and way of loading, with the other factors drawn;",
        "`make test-all` trains each twentieth of these.",
        "",
        "| saved by FSDP1 as | " + " | ".join(WAYS) + " |",
        "|---|" + "---|" * len(WAYS),
    ]
    for form in FORMS:
        lines.append(f"| {TITLES.get(form, form)} | " + " | ".join(_summary(cells, form, way) for way in WAYS) + " |")
    lines += [
        "",
        LEGEND,
        "",
        "## What is refused, and the message",
        "",
        "| saved as | loaded by | message |",
        "|---|---|---|",
    ]
    lines += _refused(cells)
    lines += ["", "## Within rounding", "", "| programs | reason |", "|---|---|"]
    close = collections.Counter(one["detail"] for one in cells if one["outcome"] == Outcome.CLOSE.value)
    lines += [f"| {count} | {reason} |" for reason, count in close.items()]
    if like:
        rows = [one for one in cells if one["outcome"] == Outcome.LIKE_FSDP1.value]
        lines += ["", "## Like FSDP1", "", "| program | what FSDP1's own load changes |", "|---|---|"]
        lines += [f"| {', '.join(one['spec'].values())} | {_cell(one['detail'])} |" for one in rows]
    if bad:
        lines += ["", "## Different", "", "| program | outcome | detail |", "|---|---|---|"]
        lines += [f"| {', '.join(one['spec'].values())} | {one['outcome']} | {_cell(one['detail'])} |" for one in bad]
    lines += ["", "## The combined factors", "", "| factor | values |", "|---|---|"]
    lines += [f"| {name} | {'; '.join(TITLES.get(one, one) for one in values)} |" for name, values in FACTORS.items()]
    lines += [
        "",
        COMPARED,
        "",
        "Left out, because FSDP1 does not support it:",
        "",
        *(f"- {reason}" for reason in EXCLUDED),
        "",
    ]
    return "\n".join(lines)


def _summary(cells: Sequence[Mapping[str, Any]], form: str, way: str) -> str:
    here = (one for one in cells if one["spec"]["form"] == form and one["spec"]["way"] == way)
    counts = collections.Counter(one["outcome"] for one in here)
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))


def _refused(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    said: dict[tuple[str, str], str] = {}
    for one in cells:
        if one["outcome"] == Outcome.REFUSED.value:
            said.setdefault((one["spec"]["form"], one["spec"]["way"]), one["detail"])
    for (form, way), text in sorted(said.items()):
        yield f"| {TITLES.get(form, form)} | {way} | {_cell(text[:300])} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


LEGEND = """\
`rewrite` and `shim` are the program itself, after `fsdp-migrate rewrite` and `rewrite --to shim`. The other three are
FSDP2 programs that load the checkpoint with exactly the lines printed by `checkpoint inspect`, by
`checkpoint convert --to dcp` (`dcp`), or by a conversion to one file and then back to a folder (`full and back`)."""

COMPARED = """\
Right after the load, all weights, buffers, optimizer states and settings must be bit-identical, whatever the number of
ranks. The comparison then covers the losses of every rank in the following steps, and the weights, states, settings,
scheduler, scaler and generator at the end. If the number of ranks changes, mean losses are compared, and in bf16 only
the losses are compared after the load, within 10 %. `4h` means four ranks in two replicas. Zero-dimensional parameters
occur only in ignored modules, because FSDP1 cannot shard them."""

if __name__ == "__main__":
    raise SystemExit(main())
