"""Throws generated and broken inputs at the command until the time is over, and keeps the smallest of each failure.

python scripts/fuzz.py --minutes 10
python scripts/fuzz.py --kinds programs,broken-sources --cases 5000 --seed 5000000 --minutes 120
python scripts/fuzz.py --kinds programs,broken-sources --cases 5000 --seed 6000000 --minutes 120

Several of them may run at a time, each with numbers of its own.
"""

from __future__ import annotations

import argparse
import collections
import gc
import random
import re
import resource
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.fuzz import cases  # noqa: E402  the repository is no package that is installed
from tests.fuzz.shrinking import smallest  # noqa: E402

CORPUS = ROOT / "tests" / "fuzz" / "corpus"


@dataclass
class Figures:
    """What a run came to, by kind of input."""

    cases: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: collections.Counter[str] = field(default_factory=collections.Counter)
    slowest: tuple[float, str] = (0.0, "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="stop after so many")
    parser.add_argument("--cases", type=int, default=0, help="stop after so many of each kind; 0 for no such end")
    parser.add_argument("--seed", type=int, default=0, help="the number of the first case")
    parser.add_argument("--kinds", default=",".join(cases.KINDS), help=f"of {', '.join(cases.KINDS)}")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    # A tree that is thrown away soon is no reason to look through all of torch's modules.
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    figures = Figures()
    started = time.monotonic()
    end = started + 60 * options.minutes
    number = options.seed
    while time.monotonic() < end and (not options.cases or number < options.seed + options.cases):
        for kind in options.kinds.split(","):
            _one(kind, number, figures)
        number += 1
        if (number - options.seed) % 500 == 0:
            print(f"{number - options.seed} of each, {sum(figures.failures.values())} failures", flush=True)
    asked = f" of {options.cases}, ended by the time" if number < options.seed + options.cases else ""
    for kind, count in figures.cases.items():
        print(f"{kind}: {count} cases{asked} from {options.seed} on, {figures.failures[kind]} failures")
    print(f"took {(time.monotonic() - started) / 60:.1f} minutes, {time.process_time() / 60:.1f} of one processor")
    print(f"slowest: {figures.slowest[0]:.2f} s, {figures.slowest[1]}")
    print(f"memory at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")
    return 1 if figures.failures else 0


def _one(kind: str, number: int, figures: Figures) -> None:
    case = cases.KINDS[kind](random.Random(f"{kind} {number}"))
    started = time.process_time()
    failure = _failure(case.check, case.data)
    taken = time.process_time() - started
    figures.cases[kind] += 1
    figures.slowest = max(figures.slowest, (taken, f"{kind} {number}, {len(case.data)} bytes"))
    if failure is None:
        return
    figures.failures[kind] += 1
    print(f"{kind} {number}: {failure[:2000]}", flush=True)
    name = _class(failure)
    path = CORPUS / cases.FOLDERS[kind] / f"{re.sub(r'[^a-z]+', '-', name.lower()).strip('-')[:60]}-{number}"
    if any(path.parent.glob(f"{path.name.rpartition('-')[0]}-*")):
        return
    shrinks = case.shrinks and _failure(case.check, case.data) is not None
    small = smallest(case.data, lambda data: _class(_failure(case.check, data) or "") == name) if shrinks else case.data
    path.write_bytes(small)
    print(f"kept as {path.relative_to(ROOT)}", flush=True)


def _failure(check: Callable[[bytes], None], data: bytes) -> str | None:
    try:
        check(data)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def _class(failure: str) -> str:
    """What is the same in failures of one cause."""
    return re.sub(r"\d+|'[^']*'|\"[^\"]*\"|: .*|\(.*", "", failure.split("\n")[0].replace("Error: ", " ", 1))[:100]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        tempfile.tempdir = directory
        raise SystemExit(main())
