"""Whole projects train the same after the command has rewritten them, and resume from what FSDP1 saved."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.parity.compare import differ
from tests.parity.cpu import fsdp1_on_cpu
from tests.parity.ordered import fsdp1_on_cpu_in_rank_order
from tests.parity.tolerance import NORM_TOLERANCE
from tests.pool import ROOT, Pool

PROJECTS = sorted(path.parent for path in (ROOT / "fixtures" / "projects").glob("*/train.py"))
#: FSDP1 accumulates in bf16 where it does not synchronise, FSDP2 in the dtype of the reduction. The optimizer's second
#: moments, squares of gradients, show it most.
BF16_TOLERANCE = 5e-2


TARGETS = [(path, to) for path in PROJECTS for to in ("native", "shim")]


@pytest.fixture(scope="module", params=TARGETS, ids=lambda target: f"{target[0].name}-{target[1]}")
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The train.py of a project before and after the command, which went to FSDP2 itself or to the shim."""
    original, to = request.param
    copy = tmp_path_factory.mktemp(original.name) / original.name
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "fsdp_migrate", "rewrite", "--to", to, str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return original / "train.py", copy / "train.py"


class Originals:
    """What the projects give under FSDP1, which is what both targets are held against: each run once."""

    def __init__(self, pool: Pool, directory: Path) -> None:
        self._pool = pool
        self._directory = directory
        self._done: dict[tuple[object, ...], Path] = {}

    def train(self, script: Path, world_size: int, *options: str, steps: int = 4) -> Path:
        """As :func:`train`."""
        key = (script, world_size, options, steps)
        if key not in self._done:
            out = self._directory / str(len(self._done))
            self._done[key] = train(self._pool, script, world_size, out, *options, steps=steps)
        return self._done[key]


@pytest.fixture(scope="module")
def originals(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Originals:
    return Originals(pool, tmp_path_factory.mktemp("originals"))


@pytest.mark.parametrize("world_size", [2, pytest.param(4, marks=pytest.mark.whole)])
def test_fp32_is_the_same_bit_for_bit(
    pool: Pool, project: tuple[Path, Path], originals: Originals, tmp_path: Path, world_size: int
) -> None:
    before = originals.train(project[0], world_size)
    assert list(unlike(before, train(pool, project[1], world_size, tmp_path / "after"))) == []


def test_bf16_is_the_same(pool: Pool, project: tuple[Path, Path], originals: Originals, tmp_path: Path) -> None:
    options = ("--dtype", "bf16")
    before = originals.train(project[0], 2, *options)
    after = train(pool, project[1], 2, tmp_path / "after", *options)
    assert list(unlike(before, after, BF16_TOLERANCE)) == []


def test_the_rewritten_resumes_from_what_fsdp1_saved(
    pool: Pool, project: tuple[Path, Path], originals: Originals, tmp_path: Path
) -> None:
    (checkpoint,) = originals.train(project[0], 2, steps=2).glob("checkpoint*")
    options = ("--resume", str(checkpoint))
    before = originals.train(project[0], 2, *options, steps=4)
    after = train(pool, project[1], 2, tmp_path / "after", *options, steps=4)
    assert [record["step"] for record in log(after)] == [2, 3]
    assert list(unlike(before, after)) == []


def train(pool: Pool, script: Path, world_size: int, out: Path, *options: str, steps: int = 4) -> Path:
    """Train ``script``; the directory that holds its log and its checkpoint."""
    out.mkdir(parents=True)
    arguments = ["--out", str(out), "--steps", str(steps), *options]
    # Lifting FSDP1's checks changes nothing for a script that has no FSDP1 in it any more.
    prelude = fsdp1_on_cpu if world_size == 2 else fsdp1_on_cpu_in_rank_order
    pool.run_script(script, world_size, arguments, prelude=prelude)
    return out


def log(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def unlike(before: Path, after: Path, relative: float = 0.0) -> Iterator[str]:
    """Where the logs and the saved tensors of two runs differ. Norms are given their tolerance."""
    records = log(before), log(after)
    assert len(records[0]) > 0
    for norms in (False, True):
        parts = [[{key: r[key] for key in r if ("norm" in key) is norms} for r in several] for several in records]
        yield from differ("log", *parts, max(relative, NORM_TOLERANCE) if norms else relative)
    files = [{str(file.relative_to(out)): file for file in out.rglob("*.pt")} for out in (before, after)]
    assert len(files[0]) > 0
    assert files[0].keys() == files[1].keys()
    for name in files[0]:
        yield from differ(name, load(files[0][name]), load(files[1][name]), relative)


@cache
def load(file: Path) -> Any:
    import torch

    return _without_order(torch.load(file, weights_only=True))


def _without_order(value: Any) -> Any:
    """Forget the order of parameters' names in an optimizer's groups, and whether AdamW's betas are a tuple.

    Neither means anything: states stand by name, and torch's own loading turns the betas into a list.
    """
    if isinstance(value, dict):
        return {key: _without_order(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return sorted(value) if value and isinstance(value[0], str) else [_without_order(item) for item in value]
    return value
