"""Migrates a small FSDP1 project and trains it before and after, on two processes on this machine.

Shows the change that the command makes, and how both compare bit for bit; exits 1 when any value differs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "fixtures" / "projects" / "minigpt"
STEPS = 12
PROCESSES = 2


def main() -> int:
    """Run the demonstration; the exit code."""
    console = Console()
    with tempfile.TemporaryDirectory() as directory:
        before, after = Path(directory, "before"), Path(directory, "after")
        for tree in (before, after):
            shutil.copytree(PROJECT, tree, ignore=shutil.ignore_patterns("__pycache__"))

        console.rule("fsdp-migrate rewrite --diff")
        console.print(Syntax(rewrite(after, "--diff").stdout, "diff", background_color="default", word_wrap=True))
        console.rule("fsdp-migrate rewrite")
        written = rewrite(after)
        console.print(written.stdout + written.stderr, markup=False, highlight=False)
        if written.returncode != 0:
            return written.returncode

        console.rule(f"fsdp-migrate verify: {STEPS} steps before and after, on {PROCESSES} processes")
        return verify(Path(directory))


def rewrite(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command on ``tree``. Exit code 1 says that something is left to a human; more is an error."""
    command = [sys.executable, "-m", "fsdp_migrate", "rewrite", *options, "train.py"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise SystemExit(f"fsdp-migrate failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def verify(directory: Path) -> int:
    """Train before and after, and print how they compare; 1 if any value differs."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
    training = [*torchrun, "train.py", "--out", "out", "--steps", str(STEPS)]
    options = ["--before-dir", "before", "--after-dir", "after", "--no-repeat", "--steps", str(STEPS)]
    command = [sys.executable, "-m", "fsdp_migrate", "verify", *options, "--", *training]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=directory, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
