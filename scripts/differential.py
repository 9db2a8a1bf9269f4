"""Trains generated FSDP1 programs before and after a rewrite, and compares losses, norms and weights bit for bit.

python scripts/differential.py --programs 500
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

from fsdp_rules.settings import Settings  # noqa: E402
from tests.parity.harness import check  # noqa: E402
from tests.parity.mutated import drawn  # noqa: E402
from tests.pool import Pool  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 1 if a program trains differently, or not at all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=500, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one")
    options = parser.parse_args(arguments)
    verdicts: collections.Counter[str] = collections.Counter()
    is_good = True
    with Pool(4) as pool:
        for number in range(options.first, options.first + options.programs):
            with tempfile.TemporaryDirectory() as directory:
                outcome = check(pool, drawn(number), Path(directory), Settings())
            verdicts[outcome.verdict.value] += 1
            if verdicts.total() % 50 == 0:
                print(f"{verdicts.total()} programs: {dict(verdicts)}", flush=True)
            if not outcome.verdict.good:
                is_good = False
                print(f"{number}: {outcome.verdict.value}: {outcome.detail[-1500:]}", flush=True)
    for verdict, count in verdicts.items():
        print(f"{count:4} {verdict}")
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
