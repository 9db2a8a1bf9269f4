"""Seeds wrong edits into rewrites, bisects each, and prints the runs; exits 1 if fewer than 19 of 20 are found.

python scripts/bisect_matrix.py [NAME …]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fsdp_migrate.verify.bisect.culprits import Trial
from fsdp_migrate.verify.bisect.forms import Edit
from fsdp_migrate.verify.bisect.smallest import most_runs
from tests.pool import Pool
from tests.verify.bisect_seeds import SEEDS, Seeded

#: Of each twenty so many have to be found.
NEEDED = 19 / 20


def main(names: list[str]) -> int:
    """Print a row for each seed as Markdown; the exit code."""
    chosen = [seed for seed in SEEDS if not names or seed.name in names]
    print("| wrong edit | program | edits | runs | at most | found |\n|---|---|---|---|---|---|")
    named = 0
    with tempfile.TemporaryDirectory() as directory, Pool(2) as pool:
        seeded = Seeded(pool, Path(directory))
        for seed in chosen:
            began = time.monotonic()
            found, wrong = seeded.searched(seed, _watch)
            edits = len(seeded.forms(seed.project).edits)
            said = ", ".join(_place(edit) for edit in found.edits) or "nothing"
            is_right = found.search is not None and found.search.edits == {wrong.name}
            runs = found.search.runs if found.search is not None else 0
            named += is_right and runs <= most_runs(edits)
            mark = "" if is_right else f", wrong is {_place(wrong)}"
            row = f"| {seed.name} | {seed.project} | {edits} | {runs} | {most_runs(edits)} | {said}{mark} |"
            print(row, flush=True)
            print(f"  {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    print(f"\n{named} of {len(chosen)} found")
    return int(named < NEEDED * len(chosen))


def _watch(run: int, most: int, edits: list[Edit], trial: Trial) -> None:
    came = "equal" if trial.is_equal else "different" if trial.verdict is not None else trial.last
    print(f"  run {run} of at most {most}: {', '.join(map(_place, edits))}: {came}", file=sys.stderr, flush=True)


def _place(edit: Edit) -> str:
    return f"{edit.finding.path}:{edit.finding.line} {edit.finding.rule}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
