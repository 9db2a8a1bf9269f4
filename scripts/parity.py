"""Trains every program of the parity matrix before and after a rewrite; writes docs/parity.json and docs/parity.md.

``--page`` writes the page again from docs/parity.json and trains nothing. Exits 1 when any program differs or fails.
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
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402

from fsdp_migrate.tree.torch_release import parse_release  # noqa: E402
from fsdp_rules.settings import Settings  # noqa: E402
from tests.parity.harness import Outcome, Verdict, check  # noqa: E402
from tests.parity.programs import programs  # noqa: E402
from tests.parity.specs import EXCLUDED, FACTORS  # noqa: E402
from tests.parity.tolerance import EXACT, TOLERANCES, tolerance  # noqa: E402
from tests.pool import Pool  # noqa: E402

DATA, PAGE = ROOT / "docs/parity.json", ROOT / "docs/parity.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="run these programs alone, and write no page")
    parser.add_argument("--show", action="store_true", help="print the whole reason of everything that went wrong")
    parser.add_argument("--torch", type=parse_release, metavar="RELEASE", help="write for this torch; writes no page")
    parser.add_argument("--page", action="store_true", help="write the page from the last run, and train nothing")
    options = parser.parse_args(arguments)
    if options.page:
        PAGE.write_text(page(json.loads(DATA.read_text(encoding="utf-8"))), encoding="utf-8")
        return 0
    settings = Settings(torch=options.torch) if options.torch else Settings()
    chosen = [program for program in programs() if not options.only or program.name in options.only]
    if unknown := set(options.only or ()) - {program.name for program in chosen}:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    console = Console()
    outcomes = []
    with Pool(4) as pool:
        for program in track(chosen, "training before and after", console=console):
            with tempfile.TemporaryDirectory() as directory:
                outcome = check(pool, program, Path(directory), settings)
            outcomes.append(outcome)
            if not outcome.verdict.good or options.only:
                detail = outcome.detail if options.show else outcome.brief
                console.print(f"{program.name}: {outcome.verdict.value}: {detail}", markup=False, highlight=False)
    for verdict, count in collections.Counter(outcome.verdict for outcome in outcomes).items():
        console.print(f"{count:4} {verdict.value}")
    for form, count in collections.Counter(outcome.form for outcome in outcomes).items():
        console.print(f"{count:4} {form}")
    if not options.only and not options.torch:
        data = results(outcomes)
        write_data(data)
        PAGE.write_text(page(data), encoding="utf-8")
    return 0 if all(outcome.verdict.good for outcome in outcomes) else 1


def results(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What docs/parity.json has of a run."""
    programs = {
        outcome.program.name: {
            "result": outcome.verdict.value,
            "form": outcome.form,
            "detail": outcome.brief,
            "processes": outcome.program.world_size,
            "spec": dict(outcome.program.spec),
        }
        for outcome in outcomes
    }
    return {"date": date.today().isoformat(), "torch": torch.__version__, "programs": programs}


def write_data(data: Mapping[str, Any]) -> None:
    """Write docs/parity.json, one program a line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in data["programs"].items()]
    head = "".join(f"  {json.dumps(key)}: {json.dumps(data[key])},\n" for key in ("date", "torch"))
    programs = ",\n".join(lines)
    DATA.write_text(f'{{\n{head}  "programs": {{\n{programs}\n  }}\n}}\n', encoding="utf-8")


def page(data: Mapping[str, Any]) -> str:
    """The text of docs/parity.md."""
    found = data["programs"]
    specs = {name: one["spec"] for name, one in found.items()}
    counts = collections.Counter(one["result"] for one in found.values())
    forms = collections.Counter(one["form"] for one in found.values())
    release = data["torch"].partition("+")[0]
    lines = ["<!-- Written by `make parity`; do not edit. -->", "# Parity", ""]
    lines += [
        f"**{len(found)} FSDP1 programs were trained before and after `fsdp-migrate rewrite`: {counts['equal']} are",
        f"equal bit for bit, {counts[Verdict.CLOSE.value]} are equal within a tolerance with a stated reason, and "
        f"{counts[Verdict.DIFFERENT.value] + counts[Verdict.FAILED.value]} differ.**",
        "",
        f"Run on {data['date']} with torch {release}, on two or four CPU processes over gloo. Of the programs,",
        f"{forms['native']} became native FSDP2, and {forms['helper']} call the helper `fsdp_compat.shard`.",
    ]
    lines += [
        "",
        "## Tolerances",
        "",
        "| programs | largest difference allowed | reason |",
        "|---|---|---|",
    ]
    for one in (EXACT, *TOLERANCES):
        number = sum(tolerance(spec) == one for spec in specs.values())
        allowed = f"{one.relative:g} of the largest value" if one.relative else "none"
        lines.append(f"| {number} | {allowed} | {one.reason} |")
    lines += ["", COMPARED, "", "| | programs | equal | within a tolerance |", "|---|---|---|---|"]
    for factor in ("precision", "strategy"):
        lines += _by(factor, found, specs)
    for title, verdicts in (("Left to a human", (Verdict.MANUAL,)), ("Different", (Verdict.DIFFERENT, Verdict.FAILED))):
        bad = {name: one for name, one in found.items() if one["result"] in {verdict.value for verdict in verdicts}}
        if bad:
            lines += ["", f"## {title}", "", "| program | result | detail |", "|---|---|---|"]
            lines += [f"| {name} | {one['result']} | {_cell(one['detail'])} |" for name, one in bad.items()]
    lines += ["", "## What is left out", "", LEFT_OUT, "", *(f"- {reason}" for reason in EXCLUDED), ""]
    lines += ["## Method", "", METHOD, ""]
    lines += ["## Every program", "", f"| program | processes | result | wrapped by | {' | '.join(FACTORS)} |"]
    lines += ["|" + "---|" * (len(FACTORS) + 4)]
    for name, one in found.items():
        values = " | ".join(one["spec"].get(factor, "") for factor in FACTORS)
        lines.append(f"| {name} | {one['processes']} | {one['result']} | {one['form']} | {values} |")
    return "\n".join(lines) + "\n"


def _by(factor: str, found: Mapping[str, Any], specs: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    groups = collections.defaultdict(list)
    for name, spec in specs.items():
        groups[spec[factor]].append(found[name]["result"])
    for value, group in sorted(groups.items()):
        yield f"| {factor} {value} | {len(group)} | {group.count('equal')} | {group.count(Verdict.CLOSE.value)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


COMPARED = """\
The comparison covers the losses of every rank and step, the full final weights, and everything that a program reads in
between. Gradient norms agree to 1e-6: FSDP1 sums the squares of a flat shard, FSDP2 those of each parameter's shard. By
precision and strategy:"""

METHOD = """\
Each program is a small FSDP1 training script with one combination of constructor arguments and loop features. Every
pair of values occurs in at least one program, if FSDP1 runs that combination. `place` says where the program's code
is: in one script, or in two to four files, with the model passed to another file directly, in a list, a dictionary or a
dataclass, or as an attribute of an object, or built by a function in another file, or used by a closure. A program
trains four steps, each rank on its own data: once with FSDP1, and once after `fsdp-migrate rewrite`. `make parity`
repeats all programs, and `python scripts/parity.py --only NAME` repeats one."""

LEFT_OUT = """\
FSDP1 refuses most of these combinations or computes wrong results for them, and some are not possible in code. FSDP1
runs two of them. In these, FSDP1 and FSDP2 do **not** agree, or were not compared: active clipping with a trained
ignored module (the losses change, because FSDP1 clips each rank by a different norm), and AdamW wherever a tolerance
applies. States are saved on rank 0 and read by all ranks; ranks that each load different values are not covered. Hybrid
programs
run on four processes, all others on two. GPUs were not used."""

if __name__ == "__main__":
    raise SystemExit(main())
