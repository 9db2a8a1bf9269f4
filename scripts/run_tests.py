"""The test suite as four runs of pytest side by side; with ``--all`` also the cases that are marked ``whole``.

Each shares one pool of workers, whose ranks wait for one another much of the time, and leaves the processors idle then,
for the others. Coverage is measured in two of them, whose tests run the rewriter and the command in their own process.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
#: The runs without coverage: those that train most, and what counts calls, to which coverage would add its own.
PLAIN = (
    ("tests/shim", "tests/test_pool.py"),
    ("tests/parity", "tests/verify", "tests/fuzz/test_growth.py"),
)
#: The tests of one run with coverage; the other has all that no other has.
COVERING = ("tests/rules", "tests/leftovers")
#: What the tests start hundreds of processes of: each would compile it again where Python is told to keep no bytecode.
COMPILED = ("fsdp_migrate", "rules", "shim", "tests")
#: Statements of the rewriter and the command that the runs with coverage reach, in percent; what only the others do
#: (verify) counts as not run. It may only rise.
COVERED = 86
#: Its instrumentation is gone from a line that has run once; tracing every line doubles the time of the whole run.
SLIPCOVER = ("slipcover", "--source", "rules/fsdp_rules,fsdp_migrate", "--json", "--out")
#: pytest finds the plugin that slipcover has for it loaded already.
LOADED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"


def main() -> int:
    """Run all, show the first as it goes and then the others; the exit code of the first that failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="the whole matrices too")
    marked = ("-m", "not long") if parser.parse_args().all else ()
    for name in COMPILED:
        # The corpus of the fuzzer does not compile.
        compileall.compile_dir(ROOT / name, quiet=2)
    named = [*PLAIN[0], *PLAIN[1], *COVERING]
    others = ["tests", *(f"--ignore={name}" for name in named)]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        counted = [folder / "rules.json", folder / "others.json"]
        commands = [
            *(["pytest", *_present(names)] for names in PLAIN),
            *(
                [*SLIPCOVER, str(path), "-m", "pytest", "-W", LOADED, *tests]
                for path, tests in zip(counted, (_present(COVERING), others), strict=True)
            ),
        ]
        said = [None, *(stack.enter_context(tempfile.TemporaryFile()) for _ in commands[1:])]
        runs = [_started([*command, *marked], output) for command, output in zip(commands, said, strict=True)]
        for run, output in zip(runs, said, strict=True):
            run.wait()
            if output is not None:
                output.seek(0)
                shutil.copyfileobj(output, sys.stdout.buffer)
                sys.stdout.flush()
        failed = next((run.returncode for run in runs if run.returncode), 0)
        return failed or _covered(counted, folder / "all.json")


def _present(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if (ROOT / name).exists()]


def _covered(counted: list[Path], whole: Path) -> int:
    """Print the share of the statements that were run; 1 if it is too small."""
    merge = [sys.executable, "-m", "slipcover", "--merge", *map(str, counted), "--out", str(whole)]
    subprocess.run(merge, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    percent = json.loads(whole.read_bytes())["summary"]["percent_covered"]
    print(f"coverage: {percent:.1f} % of statements, at least {COVERED} % asked")
    return int(percent < COVERED)


def _started(arguments: list[str], said: IO[bytes] | None) -> subprocess.Popen[bytes]:
    arguments = [*arguments, "--durations=25", "--durations-min=5"]
    return subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, stdout=said, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    sys.exit(main())
