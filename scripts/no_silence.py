"""Rewrites copies of checkouts and prints what FSDP2 cannot do in them and no finding speaks of; exits 1 where it does.

The scan is that of ``tests/leftovers/silence.py``, which shares no code with the rules.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.leftovers.silence import Silent, silent  # noqa: E402

REPORT = "report.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run over every checkout; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a checkout, which is copied")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the reports of the rewrites there")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", SyntaxWarning)
    total = 0
    for path in options.paths:
        with tempfile.TemporaryDirectory() as directory:
            places = scan(path.resolve(), Path(directory))
            if options.keep is not None:
                options.keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(directory, REPORT), options.keep / f"{path.name}.json")
        for place in places:
            print(f"{place.path}:{place.line}: {place.kind}: {place.text}", flush=True)
        print(f"{path.name}: {len(places)}", flush=True)
        total += len(places)
    return 1 if total else 0


def scan(checkout: Path, where: Path) -> list[Silent]:
    """What a rewrite of a copy of ``checkout`` in the directory ``where`` passes over."""
    copy = where / checkout.name
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"), symlinks=True)
    command = [sys.executable, "-m", "fsdp_migrate", "rewrite", "--allow-dirty", "--jobs", "1", "--report", REPORT]
    subprocess.run([*command, checkout.name], cwd=where, capture_output=True, check=False)
    found = json.loads((where / REPORT).read_text())["findings"]
    sources = {
        str(path.relative_to(where)): path.read_text(encoding="utf-8", errors="replace")
        for path in sorted(copy.rglob("*.py"))
        if path.is_file()
    }
    return silent(sources, [(finding["path"], finding["rule"]) for finding in found])


if __name__ == "__main__":
    raise SystemExit(main())
