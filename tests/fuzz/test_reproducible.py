"""The same tree gives the same bytes, whatever the number of processes and the seed of Python's hashes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import programs

ROOT = Path(__file__).resolve().parents[2]
FILES = 18
#: Few and small files stay in one process otherwise.
RUN = """
import os, sys
from fsdp_migrate.cli import main
from fsdp_migrate.pipeline import pool
pool.MIN_ITEMS = pool.MIN_BYTES = 0
os.cpu_count = lambda: 4
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generated programs that import from each other by name and by star."""
    root = tmp_path_factory.mktemp("tree")
    rng = random.Random("reproducible")
    for number in range(FILES):
        links = [f"from part_{other} import run, model, net" for other in rng.sample(range(FILES), 2)]
        links.append(f"from part_{rng.randrange(FILES)} import *")
        program = programs.source(rng).data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        calls = "run(model)\nmodel = run(net)\n"
        (root / f"part_{number}.py").write_bytes("\n".join([*links, ""]).encode() + program + b"\n" + calls.encode())
    return root


def _answer(tree: Path, command: str, jobs: int, seed: int, report: Path) -> tuple[int, bytes, bytes]:
    environment = os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    options = ["--diff", "--report", str(report)] if command == "rewrite" else ["--format", "json"]
    answer = subprocess.run(
        [sys.executable, "-c", RUN, command, *options, "--jobs", str(jobs), "."],
        cwd=tree,
        env=environment,
        capture_output=True,
        check=False,
    )
    assert answer.returncode in (0, 1, 2), answer.stderr.decode()
    said = answer.stdout + (report.read_bytes() if report.exists() else b"")
    return answer.returncode, said, answer.stderr


@pytest.mark.parametrize("command", ["rewrite", "check"])
def test_jobs_and_hash_seeds_change_nothing(tree: Path, tmp_path: Path, command: str) -> None:
    first = _answer(tree, command, 1, 0, tmp_path / "one.json")
    assert len(first[1]) > 10_000
    for jobs, seed in ((2, 1), (4, 4242)):
        assert _answer(tree, command, jobs, seed, tmp_path / f"{jobs}.json") == first
