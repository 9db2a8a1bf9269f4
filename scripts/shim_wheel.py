"""Builds the wheel of fsdp-compat, installs it where torch and numpy are alone, and trains from it as under FSDP1.

The program is a project of fixtures/ after `fsdp-migrate rewrite --to shim`; its log is compared with that of the
original, which runs in the same environment. Exits 1 if they differ, or if the wheel brought another package along.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterable
from email import message_from_string
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "fixtures" / "projects" / "minigpt"
RUN_ON_CPU = ROOT / "fixtures" / "run_on_cpu.py"
STEPS = 6
PROCESSES = 2
#: torch gathers objects of other ranks through it, and does not require it.
BESIDE_TORCH = "numpy"
#: FSDP1 sums the squares of a flat shard, FSDP2 those of each parameter.
NORM_TOLERANCE = 1e-6


def main() -> int:
    """Build, install, train and compare; the exit code."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        wheel = build(directory)
        print(f"{wheel.name}: {', '.join(requirements(wheel))}", flush=True)
        python = environment(directory / "venv", wheel)
        extra = {"fsdp-migrate", "libcst", "click", "rich"} & installed(python)
        if extra:
            print(f"the wheel brought along {', '.join(sorted(extra))}")
            return 1
        copy = directory / "project"
        shutil.copytree(PROJECT, copy, ignore=shutil.ignore_patterns("__pycache__"))
        _run([sys.executable, "-m", "fsdp_migrate", "rewrite", "--to", "shim", str(copy)])
        logs = [
            train(python, tree / "train.py", directory / f"log-{side}") for side, tree in enumerate((PROJECT, copy))
        ]
    different = [step for step, (before, after) in enumerate(zip(*logs, strict=True)) if _differ(before, after)]
    print(f"{len(logs[0])} steps on {PROCESSES} processes under FSDP1 and under the wheel: {len(different)} differ")
    return 1 if different or len(logs[0]) != STEPS else 0


def build(directory: Path) -> Path:
    """The wheel of the folder shim/, from a copy of it: the build leaves nothing behind."""
    source = directory / "shim"
    shutil.copytree(ROOT / "shim", source, ignore=shutil.ignore_patterns("__pycache__"))
    _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(directory), str(source)])
    (wheel,) = directory.glob("fsdp_compat-*.whl")
    return wheel


def requirements(wheel: Path) -> list[str]:
    """What the wheel says that it needs."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(metadata).decode()).get_all("Requires-Dist", [])


def environment(directory: Path, wheel: Path) -> Path:
    """The interpreter of an empty environment with the wheel and what it needs, torch as constraints.txt pins it."""
    venv.create(directory, with_pip=True, symlinks=True)
    python = directory / "bin" / "python"
    needed = [Requirement(line).name for line in requirements(wheel)]
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*install, "--constraint", str(ROOT / "constraints.txt"), *needed, BESIDE_TORCH])
    _run([*install, "--no-index", str(wheel)])
    return python


def installed(python: Path) -> set[str]:
    """The names of the distributions of an environment."""
    done = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, text=True, check=True)
    return {each["name"] for each in json.loads(done.stdout)}


def train(python: Path, script: Path, out: Path) -> list[dict[str, float]]:
    """Train ``script`` in a folder without this repository; what it logs at each step."""
    out.mkdir()
    torchrun = [str(python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
    _run([*torchrun, str(RUN_ON_CPU), str(script), "--out", str(out), "--steps", str(STEPS)], out)
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def _differ(before: dict[str, float], after: dict[str, float]) -> bool:
    """Whether two steps differ: losses in any bit, norms by more than their tolerance."""
    return before.keys() != after.keys() or any(
        not math.isclose(before[key], after[key], rel_tol=NORM_TOLERANCE if "norm" in key else 0.0) for key in before
    )


def _run(command: Iterable[str], directory: Path | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(list(command), check=True, cwd=directory, env=environment | {"OMP_NUM_THREADS": "1"})


if __name__ == "__main__":
    sys.exit(main())
