"""The whole test suite as three runs of pytest side by side.

Two have what trains: each shares one pool of workers, whose ranks wait for one another most of the time, and leaves the
processors idle then, for the others. Coverage is measured in the third, whose tests run the rewriter and the command
in their own process.
"""

from __future__ import annotations

import compileall
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
#: Those of the first two runs, which take as long as all others, and what counts calls, to which coverage would add
#: its own.
WITHOUT_COVERAGE = (
    ("tests/shim", "tests/test_pool.py"),
    ("tests/parity", "tests/verify", "tests/fuzz/test_growth.py"),
)
#: What the tests start hundreds of processes of: each would compile it again where Python is told to keep no bytecode.
COMPILED = ("fsdp_migrate", "rules", "shim", "tests")
#: Statements of the rewriter and the command that the third run reaches, in percent; what only the others do (verify)
#: counts as not run. It may only rise.
COVERED = 84
#: Its instrumentation is gone from a line that has run once; tracing every line doubles the time of the whole run.
SLIPCOVER = ("slipcover", "--source", "rules/fsdp_rules,fsdp_migrate", "--json", "--out")
#: pytest finds the plugin that slipcover has for it loaded already.
LOADED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"


def main() -> int:
    """Run all, show the first as it goes and then the others; the exit code of the first that failed."""
    for name in COMPILED:
        # The corpus of the fuzzer does not compile.
        compileall.compile_dir(ROOT / name, quiet=2)
    first, second = ([name for name in names if (ROOT / name).exists()] for names in WITHOUT_COVERAGE)
    others = ["tests", *(f"--ignore={name}" for name in (*first, *second))]
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as trained,
        tempfile.TemporaryFile() as covered,
    ):
        counted = Path(folder, "coverage.json")
        runs = [
            _started(["pytest", *first], None),
            _started(["pytest", *second], trained),
            _started([*SLIPCOVER, str(counted), "-m", "pytest", "-W", LOADED, *others], covered),
        ]
        for run in runs:
            run.wait()
        for said in (trained, covered):
            said.seek(0)
            sys.stdout.buffer.write(said.read())
            sys.stdout.flush()
        failed = next((run.returncode for run in runs if run.returncode), 0)
        return failed or _covered(counted)


def _covered(counted: Path) -> int:
    """Print the share of the statements that were run; 1 if it is too small."""
    percent = json.loads(counted.read_bytes())["summary"]["percent_covered"]
    print(f"coverage: {percent:.1f} % of statements, at least {COVERED} % asked")
    return int(percent < COVERED)


def _started(arguments: list[str], said: IO[bytes] | None) -> subprocess.Popen[bytes]:
    arguments = [*arguments, "--durations=25", "--durations-min=5"]
    return subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main())
