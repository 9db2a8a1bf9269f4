"""Migrates a small FSDP1 project and trains it before and after, on two processes on this machine.

Shows the change that the command makes and both loss curves; exits 1 when any loss differs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

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

        console.rule(f"training before and after, {STEPS} steps on {PROCESSES} processes")
        losses, seconds = zip(*(train(tree) for tree in (before, after)), strict=True)

    console.print(comparison(*losses))
    console.print(f"FSDP1 took {seconds[0]:.1f} s and FSDP2 {seconds[1]:.1f} s, start-up included.", highlight=False)
    same = losses[0] == losses[1]
    console.print("Every loss is the same, number for number." if same else "[bold red]The losses differ.")
    return 0 if same else 1


def rewrite(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command on ``tree``. Exit code 1 says that something is left to a human; more is an error."""
    command = [sys.executable, "-m", "fsdp_migrate", "rewrite", *options, "train.py"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        raise SystemExit(f"fsdp-migrate failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def train(tree: Path) -> tuple[list[float], float]:
    """Train the project in ``tree``; its losses and the seconds that it took."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
    command = [*torchrun, "train.py", "--out", "out", "--steps", str(STEPS)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(f"training in {tree} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
    lines = (tree / "out" / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines], seconds


def comparison(before: list[float], after: list[float]) -> Table:
    """The two loss curves side by side."""
    table = Table("step", "FSDP1", "FSDP2", "difference")
    for column in table.columns:
        column.justify = "right"
    for step, (left, right) in enumerate(zip(before, after, strict=True)):
        table.add_row(str(step), repr(left), repr(right), f"{right - left:g}")
    return table


if __name__ == "__main__":
    raise SystemExit(main())
