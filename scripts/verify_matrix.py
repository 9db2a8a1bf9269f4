"""Seeds every defect into migrated programs, and writes down what verify says; exits 1 if any is not found.

First those of training, into minigpt, then 100 of resuming, into programs of the matrix of resuming.
"""

from __future__ import annotations

import collections
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fsdp_migrate.verify.report.facts import place
from tests.pool import Pool
from tests.verify.defects import DEFECTS, Programs
from tests.verify.expected import misses
from tests.verify.resume_defects import Kind, Runs, defects
from tests.verify.resume_defects import misses as named_otherwise


def main() -> int:
    """Print the table as Markdown; the exit code."""
    failed = 0
    print("| defect | first difference | cause that is named |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as directory, Pool(2) as pool:
        programs = Programs(pool, Path(directory))
        for defect in DEFECTS:
            verdict = programs.verdict(defect)
            where = place(verdict, verdict.first) if verdict.first is not None else "none"
            told = f"{verdict.cause.message} {verdict.cause.rule}".strip() if verdict.cause is not None else "not named"
            print(f"| {defect.name} | {where} | {told} |", flush=True)
            for miss in misses(defect, verdict):
                failed += 1
                print(f"{defect.name}: {miss}", file=sys.stderr, flush=True)
        failed += _resuming(Runs(pool, Path(directory) / "resuming"))
    return int(failed > 0)


def _resuming(runs: Runs) -> int:
    """Print a row for each kind of defect; how many were not found or not named."""
    print("\n| defect | programs | found | cause that is named | named |\n|---|---|---|---|---|")
    seeded, found, named = (collections.Counter[Kind]() for _ in range(3))
    for defect in defects(100):
        verdict = runs.verdict(defect, defect.spec)
        seeded[defect.kind] += 1
        found[defect.kind] += verdict.first is not None
        wrong = list(named_otherwise(defect, verdict))
        named[defect.kind] += not wrong
        for miss in wrong:
            print(f"{defect.name}: {miss}", file=sys.stderr, flush=True)
    for kind, count in seeded.items():
        print(f"| {kind.name} | {count} | {found[kind]} | {kind.cause} | {named[kind]} |")
    return seeded.total() - named.total()


if __name__ == "__main__":
    raise SystemExit(main())
