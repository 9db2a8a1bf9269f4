"""Seeds every defect into the migrated minigpt, and writes down what verify says; exits 1 if any is not found."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fsdp_migrate.verify.report.facts import place
from tests.pool import Pool
from tests.verify.defects import DEFECTS, Programs
from tests.verify.expected import misses


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
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
