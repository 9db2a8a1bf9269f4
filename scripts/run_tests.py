"""The whole test suite as two runs of pytest side by side.

The first has what trains most. It shares one pool of workers and leaves the other processor idle between jobs, for the
second. Coverage is measured in the second, whose tests run the rewriter and the command in their own process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
#: Those of the first run, which take as long as all others.
WITH_PROCESSES = ("tests/shim", "tests/parity", "tests/verify", "tests/test_pool.py")
#: Statements of the rewriter and the command that the second run reaches, in percent; what only the first does (verify)
#: counts as not run. It may only rise.
COVERED = 70


def main() -> int:
    """Run both, show the first as it goes and then the second; the exit code of the first that failed."""
    present = [name for name in WITH_PROCESSES if (ROOT / name).exists()]
    alone = ["tests", *(f"--ignore={name}" for name in present)]
    coverage = ["--cov=fsdp_rules", "--cov=fsdp_migrate", "--cov-report=", f"--cov-fail-under={COVERED}"]
    with tempfile.TemporaryFile() as said:
        runs = [_started(present, None), _started([*alone, *coverage], said)]
        for run in runs:
            run.wait()
        said.seek(0)
        sys.stdout.buffer.write(said.read())
    return next((run.returncode for run in runs if run.returncode), 0)


def _started(arguments: list[str], said: IO[bytes] | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main())
