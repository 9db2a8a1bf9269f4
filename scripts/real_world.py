"""Runs the command over checkouts of other projects, in copies, and prints for each what became of it.

The columns: Python files; those of them that use FSDP1; uses of FSDP1 before; findings by level; uses left without a
finding, in code and in plain configuration; rewritten files that do not compile; files that a second run changes; calls
that wrap a model, what became of them (fully_shard, a helper of fsdp_compat, FSDP1 as before), files that import
fsdp_compat, and uses of FSDP1 afterwards. With ``--reasons``, why helpers were needed, most frequent first.
Exits 1 when something was left, did not compile, changed again, or failed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.constructors import HEADINGS as CALLS  # noqa: E402
from scripts.constructors import Constructors, constructors  # noqa: E402
from tests.leftovers.check import left  # noqa: E402
from tests.leftovers.uses import Use, uses  # noqa: E402

LEVELS = ("safe", "review", "manual", "info")
HEADINGS = (
    "files",
    "FSDP1 files",
    "uses",
    *LEVELS,
    "left",
    "left values",
    "not compiling",
    "changed again",
    *CALLS,
    "seconds",
)


@dataclass(frozen=True)
class Row:
    """What became of one checkout."""

    name: str
    files: int
    with_fsdp1: int
    uses: int
    levels: Counter[str]
    left: tuple[Use, ...]
    broken: tuple[str, ...]
    again: tuple[str, ...] | None
    failures: tuple[str, ...]
    calls: Constructors
    names_left: int
    seconds: float

    @property
    def good(self) -> bool:
        """Whether nothing went wrong and nothing was passed over."""
        return not (self.left or self.broken or self.again or self.failures)

    def cells(self) -> list[str]:
        """The numbers, in the order of HEADINGS."""
        values = sum(use.kind in ("value", "import") for use in self.left)
        counts = [self.files, self.with_fsdp1, self.uses, *(self.levels[level] for level in LEVELS)]
        counts += [len(self.left) - values, values, len(self.broken)]
        again = "" if self.again is None else str(len(self.again))
        return [*map(str, counts), again, *self.calls.cells(self.names_left), f"{self.seconds:.1f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run over every checkout; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a checkout, which is copied")
    parser.add_argument("--jobs", type=int, default=1, help="processes for each run")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the rewritten copies and reports there")
    parser.add_argument("--once", action="store_true", help="run the command once: the column of a second run is empty")
    parser.add_argument("--reasons", action="store_true", help="print why calls need a helper")
    options = parser.parse_args(arguments)
    # Theirs, about their own sources.
    warnings.simplefilter("ignore", SyntaxWarning)
    print("| | " + " | ".join(HEADINGS) + " |")
    print("|---" * (len(HEADINGS) + 1) + "|")
    rows = []
    for path in options.paths:
        with tempfile.TemporaryDirectory() as directory:
            rows.append(measure(path.resolve(), options.keep or Path(directory), options.jobs, options.once))
        print(f"| {rows[-1].name} | {' | '.join(rows[-1].cells())} |", flush=True)
    for row in rows:
        for use in row.left:
            print(f"{use.path}:{use.line}: {use.kind} {use.what} is left without a finding")
        for text in (*row.failures, *(f"{file}: does not compile" for file in row.broken)):
            print(text)
        for file in row.again or ():
            print(f"{file}: a second run changes it")
    if options.reasons:
        for reason, count in sum((row.calls.reasons for row in rows), Counter[str]()).most_common():
            print(f"{count:4d}  {reason}")
    return 0 if all(row.good for row in rows) else 1


def measure(checkout: Path, where: Path, jobs: int, once: bool = False) -> Row:
    """Rewrite a copy of ``checkout`` in the directory ``where``, twice or ``once``, and look at what came out."""
    where.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(where / checkout.name, ignore_errors=True)
    shutil.copytree(checkout, where / checkout.name, ignore=shutil.ignore_patterns(".git"), symlinks=True)
    before = sources(where, checkout.name)
    used = uses(before)
    start = time.monotonic()
    report = _rewrite(where, checkout.name, jobs, f"{checkout.name}.json")
    seconds = time.monotonic() - start
    after = sources(where, checkout.name)
    again_report = report if once else _rewrite(where, checkout.name, jobs, f"{checkout.name}.again.json")
    twice = None if once else sources(where, checkout.name)
    changed = [path for path, text in after.items() if text != before.get(path)]
    return Row(
        name=checkout.name,
        files=len(before),
        with_fsdp1=len({use.path for use in used}),
        uses=sum(use.kind != "import" for use in used),
        levels=Counter(finding["level"] for finding in report["findings"]),
        left=tuple(left(after, report["findings"])),
        broken=tuple(path for path in changed if not _compiles(after[path], path)),
        again=tuple(path for path, text in twice.items() if text != after[path]) if twice is not None else None,
        failures=tuple(
            f"{error['path']}: {error['message']}"
            for error in (*report["errors"], *(() if once else again_report["errors"]))
            if error["path"] not in before or _compiles(before[error["path"]], error["path"])
        ),
        calls=constructors(before, after, report["findings"]),
        names_left=sum(use.kind != "import" for use in uses(after)),
        seconds=seconds,
    )


def _rewrite(where: Path, name: str, jobs: int, report: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "fsdp_migrate", "rewrite", "--allow-dirty", "--jobs", str(jobs)]
    done = subprocess.run([*command, "--report", report, name], cwd=where, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 2) or "Traceback" in done.stderr or not (where / report).exists():
        raise SystemExit(f"{name}: the command ended with {done.returncode}\n{done.stderr}")
    content: dict[str, Any] = json.loads((where / report).read_text())
    return content


def sources(where: Path, name: str) -> dict[str, str]:
    """The text of every Python file, by path; those that cannot be decoded are left out."""
    found: dict[str, str] = {}
    for path in sorted((where / name).rglob("*.py")):
        try:
            with tokenize.open(path) as file:
                found[path.relative_to(where).as_posix()] = file.read()
        except (SyntaxError, UnicodeDecodeError, OSError):
            continue
    return found


def _compiles(text: str, path: str) -> bool:
    try:
        compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


if __name__ == "__main__":
    raise SystemExit(main())
