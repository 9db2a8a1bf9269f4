"""Trains every program of the parity matrix before and after a rewrite, and writes docs/parity.md.

Exits 1 when any program differs or fails.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402

from fsdp_migrate.tree.torch_release import parse_release  # noqa: E402
from fsdp_rules.settings import Settings  # noqa: E402
from tests.parity.harness import Outcome, Verdict, check  # noqa: E402
from tests.parity.programs import programs  # noqa: E402
from tests.parity.specs import EXCLUDED, FACTORS  # noqa: E402
from tests.parity.tolerance import TOLERANCES  # noqa: E402
from tests.pool import Pool  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the matrix; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME", help="run these programs alone, and write no page")
    parser.add_argument("--show", action="store_true", help="print the whole reason of everything that went wrong")
    parser.add_argument("--torch", type=parse_release, metavar="RELEASE", help="write for this torch; writes no page")
    options = parser.parse_args(arguments)
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
        (ROOT / "docs" / "parity.md").write_text(page(outcomes))
    return 0 if all(outcome.verdict.good for outcome in outcomes) else 1


def page(outcomes: Sequence[Outcome]) -> str:
    """The text of docs/parity.md."""
    counts = collections.Counter(outcome.verdict for outcome in outcomes)
    lines = ["<!-- Written by `make parity`; do not edit. -->", "# Parity", "", INTRODUCTION, ""]
    lines += ["| result | programs |", "|---|---|"]
    lines += [f"| {verdict.value} | {counts[verdict]} |" for verdict in Verdict if counts[verdict]]
    lines += ["", "## Tolerances", "", "| tolerance | reason |", "|---|---|"]
    lines += [f"| {tolerance.relative:g} of the largest value | {tolerance.reason} |" for tolerance in TOLERANCES]
    lines += ["", "## Combinations that are left out", "", LEFT_OUT, "", *(f"- {reason}" for reason in EXCLUDED), ""]
    if manual := [outcome for outcome in outcomes if outcome.verdict is Verdict.MANUAL]:
        lines += ["## Left to a human", "", "| program | finding |", "|---|---|"]
        lines += [f"| {outcome.program.name} | {_cell(outcome.brief)} |" for outcome in manual] + [""]
    if bad := [outcome for outcome in outcomes if not outcome.verdict.good]:
        lines += ["## Not the same", "", "| program | result | detail |", "|---|---|---|"]
        lines += [f"| {o.program.name} | {o.verdict.value} | {_cell(o.brief)} |" for o in bad] + [""]
    lines += ["## Every program", "", f"| program | processes | result | wrapped by | {' | '.join(FACTORS)} |"]
    lines += ["|" + "---|" * (len(FACTORS) + 4)]
    for outcome in outcomes:
        values = " | ".join(outcome.program.spec[name] for name in FACTORS)
        judged = f"{outcome.program.world_size} | {outcome.verdict.value} | {outcome.form}"
        lines.append(f"| {outcome.program.name} | {judged} | {values} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


INTRODUCTION = """\
Each program is a small FSDP1 training script with one combination of constructor arguments and loop features. Every
pair of values is in at least one program, as far as FSDP1 runs it. A program trains four steps on gloo processes,
each on its own data: once with FSDP1, and once as `fsdp-migrate rewrite` rewrites it. The losses of every rank, the
full final weights and everything read in between must be equal bit for bit. Gradient norms must agree to 1e-6,
because FSDP1 sums the squares of a flat shard and FSDP2 those of each parameter's shard."""

LEFT_OUT = """\
FSDP1 refuses most of these combinations or computes them wrong, and some cannot be written. FSDP1 runs two of them,
and for these the two do **not** agree or were not compared: active clipping with a trained ignored module (the losses
change: FSDP1 clips every rank by another norm), and AdamW wherever a tolerance applies. States are saved on rank 0
and read by all ranks; ranks that each load different values are not covered. Hybrid programs run on four processes,
all others on two."""

if __name__ == "__main__":
    raise SystemExit(main())
